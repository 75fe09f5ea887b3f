import { mkdirSync, mkdtempSync, realpathSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { agentPath, compose, newId, type Ringfence } from '../../src/compose/compose.ts'
import { WritableRoots } from '../../src/host/root/writable-roots.ts'
import type { Spec } from '../../src/model/spec.ts'
import { openWithPrivateDirectories, PrivateDirectories } from '../../src/supervisor/private-directories.ts'
import type { Sandbox } from '../../src/supervisor/sandbox.ts'

/** A private, writable root with a root user, on real bubblewrap. */

const text = (bytes: Uint8Array): string => Buffer.from(bytes).toString('utf8')
let base: string
let ringfence: Ringfence
let open: (spec?: Spec) => Promise<Sandbox>

beforeAll(async () => {
  base = realpathSync(mkdtempSync(join(tmpdir(), 'rf-root-')))
  mkdirSync(join(base, 'state'))
  ringfence = await compose({
    env: { HOME: join(base, 'home'), RINGFENCE_HOME: join(base, 'state') },
    cwd: base,
  })
  const directories = new PrivateDirectories(join(base, 'state', 'homes'))
  const roots = new WritableRoots(join(base, 'state', 'roots'), agentPath())
  const opening = openWithPrivateDirectories(ringfence.gate, { directories, roots, newId })
  open = (spec = {}) =>
    opening({ backend: 'bubblewrap', private: ['/home/user', '/workspace'], root: 'writable', ...spec }, {})
})
afterAll(async () => {
  await ringfence.close()
  rmSync(base, { recursive: true, force: true })
})

const said = async (sandbox: Sandbox, argv: readonly string[], user?: string): Promise<string> => {
  const { stdout, stderr, outcome } = await sandbox.exec(argv, user === undefined ? {} : { user })
  const code = outcome.kind === 'exited' && outcome.code === 0 ? '' : ` ${JSON.stringify(outcome)}`
  return `${text(stdout)}${text(stderr)}${code}`
}

describe('users', () => {
  test('commands run as `user`, and as root where asked', async () => {
    await using sandbox = await open()
    expect(await said(sandbox, ['id', '-u'])).toBe('1000\n')
    expect(await said(sandbox, ['id', '-u'], 'root')).toBe('0\n')
  })

  test('sudo', async () => {
    await using sandbox = await open()
    const sh = async (line: string) => {
      await sandbox.files.write('/home/user/t.sh', line)
      return said(sandbox, ['bash', '/home/user/t.sh'])
    }
    console.log(await sh('sudo id; echo $?'))
    console.log(
      await sh(
        'sudo -u www-data id; sudo sh -c "exit 7"; echo $?; echo hello | sudo tee /opt/h; cat /opt/h; cd /tmp; sudo pwd; sudo env; sudo -i env; sudo FOO=1 sh -c "echo $FOO \\$FOO"',
      ),
    )
    console.log(await sh('sudo sleep 100 & sleep 0.3; kill -TERM $!; wait $!; echo "status $?"; ps aux'))
    console.log(
      await sh(
        'sudo sh -c "kill -9 \\$\\$"; echo $?; sudo nosuchprogram; echo $?; sudo -u nobodyhere id; echo $?; sudo',
      ),
    )
  })
})
