import { chmodSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, test } from 'vitest'
import type { Secret } from './secret.ts'
import { Vault } from './vault.ts'

const dir = mkdtempSync(join(tmpdir(), 'rf-vault-'))
afterAll(() => rmSync(dir, { recursive: true, force: true }))

function fileWith(value: string, mode = 0o600): string {
  const file = join(dir, `v${Math.random()}`)
  writeFileSync(file, value, { mode })
  return file
}
const declared = (file: string) => [{ name: 'TOKEN', file, hosts: ['api.example.com'] }]
const textOf = (secret: Secret | undefined): string | undefined => secret?.use((bytes) => bytes.toString())

describe('a value that is replaced', () => {
  test('is updated for every holder at once, and the old bytes are zeroed', () => {
    const file = fileWith('the-old-value\n')
    const vault = new Vault({})
    const lent = vault.lend('TOKEN', declared(file))
    const before = lent?.use((bytes) => bytes)
    expect(before?.toString()).toBe('the-old-value')
    writeFileSync(file, 'the-new-value')
    const fresh = vault.read(declared(file))
    const carried = fresh.get('TOKEN')
    expect(textOf(lent), 'nothing changes before it is taken').toBe('the-old-value')
    expect(vault.take(fresh)).toEqual(['TOKEN'])
    expect(textOf(lent)).toBe('the-new-value')
    for (const bytes of [before, carried]) expect(bytes?.every((byte) => byte === 0)).toBe(true)
    expect(vault.take(vault.read(declared(file))), 'the same again is no change').toEqual([])
  })

  test('is removed when it is no longer declared, and when the vault closes', () => {
    const vault = new Vault({ HERE: 'from-the-environment' })
    const both = [
      ...declared(fileWith('from-a-file')),
      { name: 'OTHER', env: 'HERE', hosts: ['api.example.com'] },
    ]
    const [token, other] = [vault.lend('TOKEN', both), vault.lend('OTHER', both)]
    const bytes = token?.use((all) => all)
    expect(vault.take(vault.read(both.slice(1)))).toEqual(['TOKEN'])
    expect(token?.disposed).toBe(true)
    expect(bytes?.every((byte) => byte === 0)).toBe(true)
    expect(vault.lend('TOKEN', both)).toBeUndefined()
    expect(textOf(other)).toBe('from-the-environment')
    vault.dispose()
    expect(other?.disposed).toBe(true)
  })
})

describe('secrets that cannot be loaded are named, and nothing changes', () => {
  mkdirSync(join(dir, 'folder'))
  test.each([
    ['a file that others can read', () => ({ file: fileWith('x'.repeat(20), 0o644) }), /is not private.*/],
    ['a missing file', () => ({ file: join(dir, 'none') }), /cannot be read .*ENOENT/],
    ['a directory', () => ({ file: join(dir, 'folder') }), /is not a file/],
    ['a file above the size limit', () => ({ file: fileWith('x'.repeat(70_000)) }), /larger than/],
    ['an unset variable', () => ({ env: 'NOT_SET' }), /`NOT_SET` is not set/],
    ['two sources', () => ({ env: 'A', file: '/x' }), /needs exactly one source/],
    ['no source', () => ({}), /needs exactly one source/],
  ])('%s', (_, place, message) => {
    const vault = new Vault({})
    const good = declared(fileWith('a-good-value'))
    const lent = vault.lend('TOKEN', good)
    const bad = { name: 'BAD', hosts: ['api.example.com'], ...place() }
    expect(() => vault.read([...good, bad])).toThrow(message)
    expect(textOf(lent)).toBe('a-good-value')
  })

  test('a name that is declared twice', () => {
    const good = declared(fileWith('a-good-value'))
    expect(() => new Vault({}).read([...good, ...good])).toThrow(/twice/)
  })

  test('correcting the file mode is enough', () => {
    const file = fileWith('a-good-value', 0o640)
    expect(() => new Vault({}).read(declared(file))).toThrow(/is not private/)
    chmodSync(file, 0o400)
    expect(textOf(new Vault({}).lend('TOKEN', declared(file)))).toBe('a-good-value')
  })
})
