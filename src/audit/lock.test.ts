import { mkdtempSync, readdirSync, readlinkSync, rmSync, symlinkSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { createLock, isLocked } from './lock.ts'

let dir = ''
let path = ''
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'ringfence-lock-'))
  path = join(dir, 'lock')
})
afterEach(() => rmSync(dir, { recursive: true, force: true }))

/** A dead holder of this boot and namespace: our own pid with another start time. */
function deadHolder(nonce: string): string {
  const probe = join(dir, 'probe')
  const lock = createLock(probe)
  lock.tryAcquire()
  const [pid, , boot, space] = readlinkSync(probe).split('.')
  lock.release()
  return [pid, '1', boot, space, nonce].join('.')
}

describe('lock', () => {
  it('has one holder at a time', () => {
    const [one, two] = [createLock(path), createLock(path)]
    expect(one.tryAcquire()).toBe('free')
    expect(two.tryAcquire()).toBeUndefined()
    expect(two.holderPid()).toBe(process.pid)
    one.release()
    expect(two.tryAcquire()).toBe('free')
    two.release()
    expect(isLocked(path)).toBe(false)
  })

  it('reports to its holder that a repair is needed', () => {
    const lock = createLock(path)
    lock.tryAcquire()
    expect(lock.tryAcquire()).toBe('inherited')
  })

  it('passes from a dead holder to exactly one successor', () => {
    symlinkSync(deadHolder('x'), path)
    const locks = Array.from({ length: 5 }, () => createLock(path))
    expect(locks.map((lock) => lock.tryAcquire()).filter(Boolean)).toEqual(['inherited'])
    expect(readdirSync(dir)).toEqual(['lock'])
  })

  it('passes on if the successor dies during the takeover', () => {
    symlinkSync(deadHolder('x'), path)
    symlinkSync(deadHolder('y'), `${path}.after.x`)
    symlinkSync(deadHolder('z'), `${path}.after.y`)
    const lock = createLock(path)
    expect(lock.tryAcquire()).toBe('inherited')
    expect(readdirSync(dir)).toEqual(['lock'])
    lock.release()
    expect(readdirSync(dir)).toEqual([])
  })

  it('waits for a live successor', () => {
    symlinkSync(deadHolder('x'), path)
    const successor = createLock(`${path}.after.x`)
    successor.tryAcquire()
    expect(createLock(path).tryAcquire()).toBeUndefined()
  })

  it('treats a holder from before the last boot as dead', () => {
    const [pid, start, , space, nonce] = deadHolder('x').split('.')
    symlinkSync([pid, start, '00000000', space, nonce].join('.'), path)
    expect(createLock(path).tryAcquire()).toBe('inherited')
  })

  it('is never taken from a holder that cannot be parsed', () => {
    symlinkSync('something else', path)
    expect(createLock(path).tryAcquire()).toBeUndefined()
  })
})
