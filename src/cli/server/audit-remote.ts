import type { Proof } from '../../audit/proof.ts'
import type { TrailFilter } from '../../audit/read.ts'
import type { TrailSource } from '../../audit/source.ts'
import type { RingfenceClient } from '../../client/client.ts'
import type { TrailRecord } from '../../client/types.ts'
import { SandboxError } from '../../model/errors.ts'

const PAGE = 1000

/** The audit log of a server. */
export const remoteTrail = (server: RingfenceClient): TrailSource => ({
  tail: (count, filter, follow) => tail(server, count, filter, follow),
  query: (filter) => query(server, filter),
  verify: async ({ against }) => {
    if (against !== undefined)
      throw new SandboxError('unsupported', '--against compares with an audit log on this host', {
        hint: 'unset RINGFENCE_URL and run it where the log is stored',
      })
    return server.verifyAudit()
  },
  lines: () => lines(server),
  proof: async (seq) => (await server.auditProof(seq)) as Proof,
  close: async () => {},
})

type Records = AsyncGenerator<TrailRecord, void>

/** One request per event name: the server filters by one at a time. */
async function* query(server: RingfenceClient, filter: TrailFilter): Records {
  const names = filter.events ?? [undefined]
  if (names.length > 1)
    throw new SandboxError('unsupported', 'a server filters by one --event at a time', {
      hint: 'run the command once for each event',
    })
  let left = filter.limit ?? Number.POSITIVE_INFINITY
  let cursor: string | undefined
  do {
    const limit = Math.min(PAGE, left)
    const page = await server.audit({ ...wireFilter(filter), limit, ...(cursor && { cursor }) })
    yield* page.items
    left -= page.items.length
    cursor = page.next ?? undefined
  } while (cursor !== undefined && left > 0)
}

const wireFilter = ({ events, eventType, agentId, sandboxId, execId, since }: TrailFilter) => ({
  ...(events?.[0] && { event: events[0] }),
  ...(eventType && { event_type: eventType }),
  ...(agentId && { agent_id: agentId }),
  ...(sandboxId && { sandbox_id: sandboxId }),
  ...(execId && { exec_id: execId }),
  ...(since && { since: since.toISOString() }),
})

async function* tail(
  server: RingfenceClient,
  count: number,
  filter: TrailFilter,
  follow: AbortSignal | undefined,
): Records {
  const limit = Math.min(PAGE, Math.max(1, count))
  const { items } = await server.audit({ ...wireFilter(filter), limit, order: 'desc' })
  const last = items.toReversed()
  if (count > 0) yield* last
  if (!follow) return
  const after = last.at(-1)?.seq
  for await (const record of server.events({ ...(after === undefined ? {} : { after }), signal: follow }))
    if (matches(record, filter)) yield record
}

const matches = (
  record: TrailRecord,
  { events, eventType, agentId, sandboxId, execId }: TrailFilter,
): boolean =>
  (!events || events.includes(record.event)) &&
  (!eventType || record.event === 'SandboxViolation') &&
  (!agentId || record.agent_id === agentId) &&
  (!sandboxId || record.sandbox_id === sandboxId) &&
  (!execId || record.exec_id === execId)

async function* lines(server: RingfenceClient): AsyncGenerator<string, void> {
  for (let after = -1; ; ) {
    const text = await server.auditLines(after)
    const found = text.split('\n').filter((line) => line !== '')
    yield* found
    if (found.length === 0) return
    after = (JSON.parse(found.at(-1) as string) as { seq: number }).seq
  }
}
