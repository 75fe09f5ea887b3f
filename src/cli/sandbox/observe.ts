import type { RemoteSandbox } from '../../client/sandbox.ts'
import type { SandboxMetrics } from '../../client/types.ts'
import { visible } from '../../model/text/visible.ts'
import { print, table } from '../server/remote.ts'
import { err, passBytes } from '../terminal/output.ts'
import { attachTo } from './exec.ts'
import { find, liveSandboxes, NAME } from './find.ts'

const EVERY_MS = 1000
const pause = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms))

type Usage = { readonly metrics: SandboxMetrics; readonly name: string; readonly at: number }

/** `sandbox stats`: processor and memory of some sandboxes, or of all that live; once, or until Ctrl-C. */
export async function stats(
  ids: readonly string[],
  options: { json?: boolean; once?: boolean },
): Promise<number> {
  let before = new Map<string, Usage>()
  for (let round = 0; ; round++) {
    const now = await usageOf(ids)
    const rows = [...now.values()].map((usage) => rowOf(usage, before.get(usage.metrics.id)))
    before = now
    // The first round only measures: a share of the processor needs two figures.
    if (round > 0) print(options.json, rows, () => tableOf(rows))
    if (round > 0 && options.once) return 0
    await pause(options.once ? EVERY_MS / 2 : EVERY_MS)
  }
}

async function usageOf(ids: readonly string[]): Promise<Map<string, Usage>> {
  const wanted = ids.length > 0 ? ids : (await liveSandboxes()).map(({ id }) => id)
  const found = await Promise.all(
    wanted.map(async (id) => {
      const sandbox = await find(id)
      return {
        metrics: await sandbox.metrics(),
        name: sandbox.info.metadata?.[NAME] ?? '-',
        at: performance.now(),
      }
    }),
  )
  return new Map(found.map((usage) => [usage.metrics.id, usage]))
}

type Row = {
  readonly id: string
  readonly name: string
  readonly state: string
  readonly cpu_percent: number | null
  readonly memory_bytes: number | null
  readonly running: number
}

function rowOf({ metrics, name, at }: Usage, before: Usage | undefined): Row {
  const used = metrics.cpu_ms === null || !before ? null : metrics.cpu_ms - (before.metrics.cpu_ms ?? 0)
  const cpu = used === null || !before ? null : Math.max(0, Math.round((used / (at - before.at)) * 1000) / 10)
  const { id, state, memory_bytes, running } = metrics
  return { id, name, state, cpu_percent: cpu, memory_bytes, running }
}

const tableOf = (rows: readonly Row[]): string =>
  table([
    ['ID', 'NAME', 'STATE', 'CPU', 'MEMORY', 'COMMANDS'],
    ...rows.map(({ id, name, state, cpu_percent, memory_bytes, running }) => [
      id,
      name,
      state,
      cpu_percent === null ? '-' : `${cpu_percent.toFixed(1)} %`,
      memory_bytes === null ? '-' : `${(memory_bytes / 2 ** 20).toFixed(1)} MB`,
      String(running),
    ]),
  ])

const ENDED = ['destroyed', 'failed']

/** `sandbox wait`: until a command has ended (then with its exit code), or the whole sandbox. */
export async function wait(
  target: RemoteSandbox,
  execId: string | undefined,
  json: boolean | undefined,
): Promise<number> {
  if (execId !== undefined) return attachTo(target, execId)
  let info = target.info
  while (!ENDED.includes(info.state)) {
    await pause(EVERY_MS / 2)
    info = await target.refresh()
  }
  print(
    json,
    info,
    () => `${visible(`${info.id}: ${info.state}${info.reason ? ` (${info.reason})` : ''}`)}\n`,
  )
  return 0
}

/** `sandbox logs -f`: the output of every command that runs, until the sandbox ends. */
export async function followOutput(target: RemoteSandbox): Promise<number> {
  const followed = new Set<string>()
  for (let info = target.info; !ENDED.includes(info.state); info = await target.refresh()) {
    for (const { exec_id, state } of (await target.execs()).items)
      if (state === 'running' && !followed.has(exec_id)) {
        followed.add(exec_id)
        void attachOutput(target, exec_id)
      }
    await pause(EVERY_MS / 2)
  }
  return 0
}

/** Output only: Ctrl-C ends the reading and not the command. */
async function attachOutput(target: RemoteSandbox, execId: string): Promise<void> {
  try {
    for await (const event of target.attach(execId))
      if (event.type === 'stdout' || event.type === 'stderr') await passBytes(event.type, event.data)
  } catch (error) {
    err(`ringfence: ${visible((error as Error).message)}\n`)
  }
}
