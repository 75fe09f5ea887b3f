import { mkdirSync, mkdtempSync, realpathSync, rmSync, symlinkSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { agentPath, compose, newId } from '../../src/compose/compose.ts'
import { WritableRoots } from '../../src/host/root/writable-roots.ts'
import type { Event } from '../../src/model/event.ts'
import type { Spec } from '../../src/model/spec.ts'
import { openWithPrivateDirectories, PrivateDirectories } from '../../src/supervisor/private-directories.ts'
import type { Sandbox } from '../../src/supervisor/sandbox.ts'
import { machineImages, whyNoMachine } from '../backends/microvm-parts.ts'
import { skipped, startDocker, testState } from '../conformance/engines.ts'

/** Sandboxes with a writable root, opened as a server opens them. */
export type RootHost = {
  readonly base: string
  readonly events: Event[]
  readonly roots: WritableRoots
  readonly open: (
    spec?: Spec,
    roots?: WritableRoots,
    options?: { readonly lower?: readonly string[]; readonly disk?: string },
  ) => Promise<Sandbox>
  readonly close: () => Promise<void>
}

/** Whether this host can give a sandbox a writable root; in CI a test that cannot run is a failure. */
export const canHaveRoot = ((): boolean => {
  const missing = new WritableRoots('/nonexistent', '/nonexistent').unavailable()
  if (missing && process.getuid?.() === 0 && process.env.CI) throw new Error(missing.reason)
  return missing === undefined
})()
export const text = (bytes: Uint8Array): string => Buffer.from(bytes).toString('utf8')

/** The backends that can give a sandbox a root of its own. */
export type RootBackend = 'bubblewrap' | 'docker' | 'microvm'

/** Why a backend cannot be tested on this host; in CI that is a failure. */
export const cannotTry = (backend: RootBackend): boolean =>
  !canHaveRoot ||
  (backend === 'docker' && skipped('docker')) ||
  (backend === 'microvm' && whyNoMachine() !== undefined)

export async function rootHost(backend: RootBackend = 'bubblewrap'): Promise<RootHost> {
  const engine = backend === 'docker' ? await startDocker() : undefined
  const base = realpathSync(mkdtempSync(join(tmpdir(), 'rf-root-')))
  const state = join(base, 'state')
  mkdirSync(state)
  if (backend === 'microvm') await shareMachineImages(state)
  const events: Event[] = []
  const trail = { append: async (event: Event) => void events.push(event), close: async () => {} }
  const socket = engine ? { RINGFENCE_DOCKER_SOCKET: engine.socket } : {}
  const env = { HOME: join(base, 'home'), RINGFENCE_HOME: state, ...socket }
  const ringfence = await compose({ env, cwd: base, trail })
  const directories = new PrivateDirectories(join(state, 'homes'))
  const roots = new WritableRoots(join(state, 'roots'), agentPath())
  const opening = (from: WritableRoots) =>
    openWithPrivateDirectories(ringfence.gate, { directories, roots: from, newId })
  return {
    base,
    events,
    roots,
    open: (spec = {}, from = roots, options = {}) =>
      opening(from)({ backend, private: ['/home/user', '/workspace'], root: 'writable', ...spec }, options),
    close: async () => {
      await ringfence.close()
      await engine?.close()
      rmSync(base, { recursive: true, force: true })
    },
  }
}

/** Kernel, images and saved machines are made once for all tests of a working copy. */
async function shareMachineImages(state: string): Promise<void> {
  await machineImages()
  for (const name of ['images', 'microvm']) {
    mkdirSync(join(testState(), name), { recursive: true })
    symlinkSync(join(testState(), name), join(state, name))
  }
}

/** Runs a script file, which the policy does not judge. Returns its output, and its outcome unless it exited with 0. */
export async function sh(sandbox: Sandbox, script: string, user = 'user'): Promise<string> {
  await sandbox.files.write('/workspace/script.sh', script)
  const { stdout, stderr, outcome } = await sandbox.exec(['bash', '/workspace/script.sh'], { user })
  const end = outcome.kind === 'exited' && outcome.code === 0 ? '' : JSON.stringify(outcome)
  return `${text(stdout)}${text(stderr)}${end}`
}
