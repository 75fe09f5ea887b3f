import { execFile } from 'node:child_process'
import { appendFileSync, cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, it } from 'vitest'
import { packageRoot } from '../conformance/world.ts'

/** Inspection, signatures and trusted keys, as two users with the built command line. */

const place = mkdtempSync(join(tmpdir(), 'rf-trust-'))
afterAll(() => rmSync(place, { recursive: true, force: true }))
const program = join(packageRoot(), 'dist', 'cli', 'ringfence.cjs')

type Done = { readonly code: number; readonly stdout: string; readonly stderr: string }
/** Tests run beside others on a busy machine; the default is one second. */
const PATIENT = '[sandbox]\nwasm_epoch_deadline = 300\n'

const as =
  (user: string) =>
  (...args: readonly string[]): Promise<Done> => {
    const env = {
      PATH: process.env.PATH,
      HOME: join(place, user),
      RINGFENCE_HOME: join(place, user, 'state'),
    }
    const settings = join(place, user, '.config', 'ringfence')
    mkdirSync(settings, { recursive: true })
    writeFileSync(join(settings, 'ringfence.toml'), PATIENT)
    return new Promise((resolve) =>
      execFile(process.execPath, [program, ...args], { cwd: place, env }, (error, stdout, stderr) =>
        resolve({ code: typeof error?.code === 'number' ? error.code : 0, stdout, stderr }),
      ),
    )
  }

const config = (name: string, text: string): string => {
  const file = join(place, `${name}.toml`)
  writeFileSync(file, `${PATIENT}[skills]\n${text}\n`)
  return file
}

function greet(name: string): string {
  const dir = join(place, name)
  cpSync(join(packageRoot(), 'examples', 'skills', 'word-count'), dir, { recursive: true })
  return dir
}

describe('inspection', { timeout: 120_000 }, () => {
  it('is recommended before a run, and can be required', async () => {
    const user = as('ada')
    const dir = greet('seen')
    const first = await user('skill', 'run', dir, '--input', '"a"')
    expect(first).toMatchObject({
      code: 0,
      stderr: expect.stringMatching(/`word-count` was never inspected/),
    })
    const strict = config('inspect', 'require_inspection = true')
    const refused = await user('skill', 'run', dir, '--config', strict, '--json')
    expect(refused.code).toBe(126)
    expect(JSON.parse(refused.stderr)).toMatchObject({ error: { code: 'skill-not-inspected' } })
    await user('skill', 'inspect', dir)
    const again = await user('skill', 'run', dir, '--input', '"a"', '--config', strict)
    expect(again).toMatchObject({ code: 0, stderr: '' })
  })

  it('shows what a new version requests in addition', async () => {
    const user = as('bob')
    const dir = greet('grows')
    await user('skill', 'inspect', dir)
    appendFileSync(join(dir, 'skill.toml'), '\n[capabilities]\nnetwork = ["api.example.com:443"]\n')
    const run = await user('skill', 'run', dir, '--input', '"a"', '--json')
    expect(JSON.parse(run.stderr)).toMatchObject({
      error: {
        code: 'skill-changed',
        message: expect.stringMatching(/requests more: network: api.example.com:443/),
      },
    })
    expect((await user('skill', 'inspect', dir)).stdout).toMatch(
      /\+ network: api.example.com:443 {2}\(new since/,
    )
    const { added, changed } = JSON.parse((await user('skill', 'inspect', dir, '--json')).stdout)
    expect({ added, changed }).toEqual({ added: [], changed: false })
  })
})

describe('a signature', { timeout: 120_000 }, () => {
  it('of another user counts once its key is trusted, and never for other files', async () => {
    const [author, user] = [as('author'), as('user')]
    const dir = greet('signed')
    const strict = config('sign', 'require_signature = true')
    const run = () => user('skill', 'run', dir, '--input', '"a b"', '--config', strict, '--json')
    const codeOf = (done: Done): string =>
      JSON.parse(done.stderr.split('\n').find((line) => line.startsWith('{')) ?? '{}').error?.code
    expect(codeOf(await run())).toBe('skill-untrusted')
    const hashBefore = JSON.parse((await user('skill', 'verify', dir, '--json')).stdout).hash
    const { key } = JSON.parse((await author('skill', 'sign', dir, '--json')).stdout)
    const untrusted = await user('skill', 'verify', dir, '--json')
    expect(untrusted.code).toBe(1)
    expect(JSON.parse(untrusted.stdout)).toMatchObject({
      hash: hashBefore,
      signature: { state: 'untrusted', key },
    })
    expect(codeOf(await run())).toBe('skill-untrusted')
    expect((await user('skill', 'trust', 'nonsense')).code).toBe(2)
    expect((await user('skill', 'trust', key, '--as', 'Ada')).stdout).toContain('Ada')
    expect(await user('skill', 'verify', dir)).toMatchObject({
      code: 0,
      stdout: expect.stringMatching(/signed by Ada/),
    })
    expect(JSON.parse((await run()).stdout)).toMatchObject({ ok: { words: 2 } })

    appendFileSync(join(dir, 'main.c'), '// changed\n')
    expect((await user('skill', 'verify', dir)).stdout).toMatch(/signature invalid/)
    // Also where no signature is required: somebody changed what was signed.
    expect(codeOf(await user('skill', 'run', dir, '--json'))).toBe('skill-untrusted')
    await author('skill', 'sign', dir)
    expect((await user('skill', 'verify', dir)).code).toBe(0)
    await user('skill', 'trust', key, '--remove')
    expect((await user('skill', 'verify', dir)).code).toBe(1)
  })

  it('for another name or version is rejected, and so is text that is no signature', async () => {
    const user = as('carol')
    const [dir, other] = [greet('one'), greet('two')]
    const { key } = JSON.parse((await user('skill', 'sign', dir, '--json')).stdout)
    await user('skill', 'trust', key)
    const manifest = readFileSync(join(other, 'skill.toml'), 'utf8').replace('1.0.0', '9.0.0')
    writeFileSync(join(other, 'skill.toml'), manifest)
    cpSync(join(dir, 'skill.sig'), join(other, 'skill.sig'))
    expect((await user('skill', 'verify', other)).stdout).toMatch(/invalid/)
    for (const text of ['', '{}', '[]', '{"key":"AAAA","signature":"AAAA"}']) {
      writeFileSync(join(other, 'skill.sig'), text)
      expect((await user('skill', 'verify', other)).stdout, text).toMatch(/invalid/)
    }
    writeFileSync(join(place, 'carol', 'state', 'skills', 'trusted.json'), '{')
    expect((await user('skill', 'verify', dir)).code).toBe(2)
  })
})
