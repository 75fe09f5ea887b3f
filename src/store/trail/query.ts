import type { Engine, Row, Store, Value } from '../sql.ts'
import type { TrailRow } from './rows.ts'

/** Which records to read; every given field must match. */
export type TrailQuery = {
  readonly events?: readonly string[] | undefined
  readonly agentId?: string | undefined
  readonly sandboxId?: string | undefined
  readonly execId?: string | undefined
  /** ISO time, at or after. */
  readonly since?: string | undefined
  /** Only records of this tenant's sandboxes. */
  readonly tenant?: string | undefined
  /** Records with a greater `seq`. */
  readonly after?: number | undefined
  /** Records with a smaller `seq`. */
  readonly before?: number | undefined
  readonly order?: 'asc' | 'desc' | undefined
  readonly limit: number
}

/** How many rows one SQLite statement reads: it runs on the event loop and blocks everything else. */
const WINDOW = 1024

type Clause = { readonly sql: string; readonly params: readonly Value[] }

/** How a query is executed: the index to walk, and the filters for each row. */
type Plan = { readonly walk: Clause; readonly ours: Clause; readonly filters: readonly Clause[] }

/** The matching records of one chain. On SQLite it reads a bounded number of rows at a time and yields in between. */
export async function queryTrail(store: Store, chain: string, query: TrailQuery): Promise<TrailRow[]> {
  const plan = planOf(chain, query, store.kind)
  const hasWindows = store.kind === 'sqlite' && plan.filters.length > 0
  const found: TrailRow[] = []
  for (let from = query; found.length < query.limit; ) {
    const edge = hasWindows ? await windowEdge(store, plan, from) : undefined
    const bounds = edge === undefined ? from : { ...from, ...beyond(query, edge, -1) }
    found.push(...(await readRows(store, plan, { ...bounds, limit: query.limit - found.length })))
    if (edge === undefined) break
    from = { ...from, ...beyond(query, edge, 0) }
    await new Promise<void>((resolve) => setImmediate(resolve))
  }
  return found
}

/**
 * PLATFORM: SQLite's planner has no statistics of our data, and a wrong choice reads the whole log. The most selective
 * column is used as the index; a unary plus disables the indexes of the others. PostgreSQL has statistics and decides
 * itself, but for a tenant without rows it would wrongly prefer a scan in the order of the whole chain.
 */
function planOf(chain: string, query: TrailQuery, kind: Engine['kind']): Plan {
  const plain = (name: string): string => (kind === 'sqlite' ? `+${name}` : name)
  const plainChain = kind === 'sqlite' ? '+chain' : `COALESCE(chain, '')`
  const { sandboxId, tenant, agentId, events, execId, since } = query
  const equal = { sandbox_id: sandboxId, tenant, agent_id: agentId, event: onlyOf(events) }
  const given = Object.entries(equal).filter(([, value]) => value !== undefined) as [string, string][]
  const [leader, ...others] = given
  const filters = others.map(([name, value]) => clause(`${plain(name)} = ?`, value))
  if (events && events.length !== 1)
    filters.push(clause(`${plain('event')} IN (${events.map(() => '?').join(',') || 'NULL'})`, ...events))
  if (execId !== undefined) filters.push(clause('exec_id = ?', execId))
  if (since !== undefined) filters.push(clause('time >= ?', since))
  const ours = leader ? clause(`${plainChain} = ?`, chain) : clause('chain = ?', chain)
  return { walk: leader ? clause(`${leader[0]} = ?`, leader[1]) : ours, ours, filters }
}

const clause = (sql: string, ...params: readonly Value[]): Clause => ({ sql, params })
const onlyOf = (events: readonly string[] | undefined): string | undefined =>
  events?.length === 1 ? events[0] : undefined

type Bounds = Pick<TrailQuery, 'after' | 'before' | 'order'>

/** The bounds that end at an edge (`shift` -1) or continue after it (0). */
function beyond({ order }: Bounds, edge: number, shift: 0 | -1): Bounds {
  if (order === 'desc') return shift === 0 ? { before: edge } : { after: edge - 1 }
  return shift === 0 ? { after: edge } : { before: edge + 1 }
}

/** The last row of the next window; undefined if the window is not full. */
async function windowEdge(store: Store, plan: Plan, bounds: Bounds): Promise<number | undefined> {
  const { sql, params } = whereOf([plan.walk], bounds)
  const [row] = await store.read(
    `SELECT seq FROM trail WHERE ${sql} ORDER BY seq ${directionOf(bounds)} LIMIT 1 OFFSET ${WINDOW - 1}`,
    params,
  )
  return row?.seq as number | undefined
}

async function readRows(
  store: Store,
  plan: Plan,
  bounds: Bounds & Pick<TrailQuery, 'limit'>,
): Promise<TrailRow[]> {
  const { sql, params } = whereOf([plan.walk, plan.ours, ...plan.filters], bounds)
  const rows = await store.read(
    `SELECT seq, time, event, agent_id, sandbox_id, exec_id, tenant, line FROM trail
     WHERE ${sql} ORDER BY seq ${directionOf(bounds)} LIMIT ?`,
    [...params, bounds.limit],
  )
  return rows.map(toRow)
}

const directionOf = ({ order }: Bounds): string => (order === 'desc' ? 'DESC' : 'ASC')

function whereOf(clauses: readonly Clause[], { after, before }: Bounds): Clause {
  const all = [...clauses]
  if (after !== undefined) all.push(clause('seq > ?', after))
  if (before !== undefined) all.push(clause('seq < ?', before))
  return { sql: all.map(({ sql }) => sql).join(' AND '), params: all.flatMap(({ params }) => params) }
}

const toRow = (row: Row): TrailRow => ({
  seq: row.seq as number,
  time: row.time as string,
  event: row.event as string,
  agentId: row.agent_id as string | null,
  sandboxId: row.sandbox_id as string | null,
  execId: row.exec_id as string | null,
  tenant: row.tenant as string | null,
  line: row.line as string,
})
