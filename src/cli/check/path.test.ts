import { mkdirSync, mkdtempSync, realpathSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { afterAll, describe, expect, it } from 'vitest'
import type { CliIo } from '../terminal/io.ts'
import { answerPathLine, checkPath, jsonLine, linesOf } from './path.ts'
import { answerUrlLine, checkUrl } from './url.ts'

const root = realpathSync(mkdtempSync(join(tmpdir(), 'rf-check-')))
mkdirSync(join(root, 'w/.git/hooks'), { recursive: true })
writeFileSync(join(root, 'w/a'), 'x')
symlinkSync('/etc', join(root, 'w/l'))
afterAll(() => rmSync(root, { recursive: true, force: true }))

const said: string[] = []
const io = (json = false): CliIo => ({
  home: root,
  json,
  out: (text) => said.push(text),
  err: () => undefined,
})

describe('check path', () => {
  it.each([
    ['w/a', 'read', 0],
    ['w/a', 'write', 0],
    ['w/new/b', 'create', 0],
    ['w', 'mount-rw', 0],
    ['w/l/passwd', 'read', 4],
    ['w/gone', 'read', 4],
    ['w/.git/hooks/x', 'create', 4],
    ['w/.env', 'create', 4],
    ['other', 'create', 4],
  ])('%s %s exits %i', async (path, op, code) => {
    expect(await checkPath([join(root, path), '--op', op, '--workspace', join(root, 'w')], io())).toBe(code)
  })

  it('prints data with --json and a sentence without', async () => {
    said.length = 0
    await checkPath(['/etc/shadow', '--json'], io())
    await checkPath(['/etc/shadow', '--op=read'], io())
    expect(JSON.parse(said[0] as string)).toEqual({ verdict: 'deny', reason: expect.any(String) })
    expect(said[1]).toMatch(/^deny: /)
  })

  it.each([[[]], [['/a', '/b']], [['/a', '--op', 'chmod']]])('refuses the arguments %j', async (args) => {
    await expect(checkPath(args, io())).rejects.toMatchObject({ code: 'invalid-input' })
  })
})

describe('check url', () => {
  it('blocks an address literal without a DNS lookup', async () => {
    said.length = 0
    expect(await checkUrl(['http://127.0.0.1/'], io(true))).toBe(4)
    expect(JSON.parse(said[0] as string)).toEqual({
      verdict: 'block',
      reason: expect.stringContaining('loopback'),
    })
    expect(await checkUrl(['http://8.8.8.8/'], io())).toBe(0)
  })
  it('requires one address', async () => {
    await expect(checkUrl([], io())).rejects.toMatchObject({ code: 'invalid-input' })
  })
})

describe('batch', () => {
  it('answers every line, including invalid ones, with the same id', async () => {
    expect(answerPathLine('{')).toMatchObject({ id: null, verdict: 'deny' })
    expect(answerPathLine('{"id":"x"}')).toMatchObject({ id: 'x', verdict: 'deny' })
    expect(answerPathLine('{"id":7,"path":"/a","op":"read","policy":{"allowed":[]},"odd":1}')).toMatchObject({
      id: 7,
      verdict: 'deny',
    })
    expect(await answerUrlLine('[]')).toMatchObject({ id: null, verdict: 'block', connects: [] })
    expect(await answerUrlLine('{"id":"u","url":"http://e.org/","allowlist":["a b"]}')).toMatchObject({
      id: 'u',
      verdict: 'block',
    })
  })

  it('requires a list in fetch mode and connects to nothing offline', async () => {
    const ask = async (fields: object) =>
      (
        await answerUrlLine(
          JSON.stringify({ id: 1, url: 'http://e.org/', dns: { 'e.org': ['1.1.1.1'] }, ...fields }),
        )
      ).verdict
    expect(await ask({})).toBe('allow')
    expect(await ask({ mode: 'full' })).toBe('allow')
    expect(await ask({ mode: 'fetch' })).toBe('block')
    expect(await ask({ mode: 'offline' })).toBe('block')
    expect(await ask({ mode: 'fetch', allowlist: ['e.org'] })).toBe('allow')
  })

  it('splits only at line feeds and prints plain ASCII', async () => {
    const lines: string[] = []
    for await (const line of linesOf(Readable.from(['a\u2028b\nc', 'd\n\ne']))) lines.push(line)
    expect(lines).toEqual(['a\u2028b', 'cd', '', 'e'])
    expect(jsonLine({ a: 'é\u2028' })).toBe('{"a":"\\u00e9\\u2028"}\n')
  })

  it('decides hostile lines in time', async () => {
    const policy = {
      allowed: ['/w'],
      blocked: ['.ssh', 'secrets', '.config/gcloud'],
      protected: ['.git/hooks', '.vscode'],
    }
    const paths = [
      `/${'a/'.repeat(2040)}`,
      `/w/%${'25'.repeat(2000)}2e`,
      `/w/${'. '.repeat(2000)}x`,
      `/w/${'.'.repeat(4000)}x`,
      `/w/${'~1'.repeat(2000)}`,
      `/w/${'%c0%ae'.repeat(600)}`,
      `/w/${'ﷺ'.repeat(4000)}`,
      `/w/${'e\u0301\u0323'.repeat(1300)}`,
      `/${'.config/'.repeat(510)}`,
    ]
    for (const path of paths) {
      expect(
        answerPathLine(JSON.stringify({ id: 1, path, op: 'create', policy })).us,
        path.slice(0, 20),
        // A busy machine does not mean slow code: times are checked only in the full run.
      ).toBeLessThan(process.env.RINGFENCE_FULL ? 50_000 : 5_000_000)
    }
    const hosts = [
      'a.'.repeat(30_000),
      'ﷺ'.repeat(30_000),
      'xn--'.repeat(400),
      `${'é'.repeat(1000)}.com`,
      '%41'.repeat(600),
      '1.'.repeat(900),
    ]
    for (const host of hosts) {
      expect(
        (await answerUrlLine(JSON.stringify({ id: 1, url: `http://${host}/` }))).us,
        host.slice(0, 20),
      ).toBeLessThan(50_000)
    }
  })
})
