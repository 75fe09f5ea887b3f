import { release } from 'node:os'
import type { Backend, Probe } from '../backends/backend.ts'
import { nodeNotes } from '../cluster/node-notes.ts'
import { diagnose, type HostNote } from '../host/diagnose.ts'
import { observeHost } from '../host/host-state.ts'
import type { BackendView, Doctor } from '../model/api/host.ts'
import { listNodes, type NodeRow } from '../store/nodes.ts'
import { openStore } from '../store/open.ts'
import { databaseUrl, proofsOf, type Ringfence } from './compose.ts'
import { agentPath } from './files.ts'

/** What `ringfence doctor` and `/v1/doctor` report: backends, the host, and findings about it. */
export async function doctorReport(
  ringfence: Ringfence,
  /** The nodes of the cluster that this server belongs to. */
  nodes?: () => Promise<readonly NodeRow[]>,
): Promise<Doctor> {
  return {
    backends: (await backendReports(ringfence, true)).map((view) => ({
      ...view,
      ...provenOn(ringfence, view),
    })),
    node: process.version,
    kernel: release(),
    notes: [
      ...diagnose(await observeHost(agentPath())),
      ...(await backendNotes(ringfence)),
      ...(nodes ? nodeNotes(await nodes().catch(() => undefined)) : []),
    ],
  }
}

/** What backends have to say to the administrator; one that cannot be asked has said why in its row. */
async function backendNotes({ registry }: Ringfence): Promise<readonly HostNote[]> {
  const notes = registry.list().map(async (backend) => (await backend.notes?.().catch(() => [])) ?? [])
  return (await Promise.all(notes)).flat()
}

/** The nodes of the cluster in the database of this configuration. */
export async function clusterNodes({ config, env, stateDir }: Ringfence): Promise<readonly NodeRow[]> {
  const store = await openStore({ stateDir, databaseUrl: databaseUrl(config, env), answerMs: ANSWER_MS })
  try {
    return await listNodes(store)
  } finally {
    await store.close()
  }
}
const ANSWER_MS = 3000

/** When `ringfence prove` tried a backend on this host, and what it found broken. */
function provenOn(ringfence: Ringfence, { name }: BackendView): Pick<BackendView, 'proven_at' | 'broken'> {
  const proof = proofsOf(ringfence).load(name)
  return { proven_at: proof?.time ?? null, broken: proof?.broken ?? [] }
}

/** Every backend with its guarantees on this host; `fresh` starts each one instead of using a cached probe. */
export async function backendReports(
  { registry }: Ringfence,
  fresh = false,
): Promise<readonly BackendView[]> {
  if (!fresh)
    return Promise.all(
      registry.list().map(async (backend) => reportOf(backend, await registry.probe(backend.name))),
    )
  const reports = []
  // Sequential, because each start is timed.
  for (const backend of registry.list())
    reports.push(reportOf(backend, await registry.probe(backend.name, { fresh })))
  return reports
}

function reportOf(backend: Backend, probe: Probe): BackendView {
  const { name, level, emulated, byNameOnly } = backend
  const found = probe.available
    ? {
        guarantees: probe.guarantees,
        start_ms: Math.round(probe.startMs * 10) / 10,
        reason: noteOf(backend),
        fix: null,
      }
    : { guarantees: [], start_ms: null, reason: probe.reason, fix: probe.fix }
  return { name, available: probe.available, level, emulated, by_name_only: byNameOnly, ...found }
}

function noteOf({ byNameOnly, emulated, onRequest }: Backend): string | null {
  if (emulated) return 'emulated: slow, used only if named'
  if (byNameOnly) return 'used only if named'
  return onRequest ? 'used with --backend, --image or --min-isolation' : null
}
