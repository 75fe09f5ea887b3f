import {
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  realpathSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { type ComposeOptions, Sandbox } from '../../src/index.ts'

/** Shared set-up for tests of persistent sandboxes. */
export const FULL = Boolean(process.env.RINGFENCE_FULL)
export const text = (bytes: Uint8Array | string): string => Buffer.from(bytes as Uint8Array).toString('utf8')
export const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms))

export async function until(condition: () => boolean | Promise<boolean>, ms = 15_000): Promise<boolean> {
  const end = Date.now() + ms
  while (Date.now() < end) {
    if (await condition()) return true
    await sleep(25)
  }
  return condition()
}

export type TestHost = {
  readonly base: string
  readonly workspace: string
  readonly options: ComposeOptions
  /** A new sandbox on the workspace. */
  readonly open: (spec?: Record<string, unknown>) => Promise<Sandbox>
  /** Writes a script to the workspace and returns the argv that runs it; the policy does not judge its content. */
  readonly script: (name: string, lines: string) => readonly string[]
  readonly drop: () => void
}

export function makeTestHost(name: string): TestHost {
  const base = realpathSync(mkdtempSync(join(tmpdir(), `rf-${name}-`)))
  const workspace = join(base, 'workspace')
  mkdirSync(workspace)
  const options = { env: { HOME: join(base, 'home'), RINGFENCE_HOME: join(base, 'state') }, cwd: workspace }
  return {
    base,
    workspace,
    options,
    open: (spec = {}) => Sandbox.create({ workspace, ...spec }, options),
    script: (file, lines) => {
      writeFileSync(join(workspace, file), `${lines}\n`)
      return ['bash', join(workspace, file)]
    },
    drop: () => rmSync(base, { recursive: true, force: true }),
  }
}

/** How many processes of this machine carry the marker in their arguments. */
export const countOf = (marker: string): number =>
  readdirSync('/proc').filter((pid) => {
    if (!/^\d+$/.test(pid) || Number(pid) === process.pid) return false
    try {
      return readFileSync(`/proc/${pid}/cmdline`, 'latin1').includes(marker)
    } catch {
      return false
    }
  }).length
