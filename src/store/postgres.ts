import pg from 'pg'
import { SandboxError } from '../model/errors.ts'
import { type Engine, numbered, type Row, type Tx, type Value } from './sql.ts'

const READERS = 8
const INT8 = 20
/** The default timeout of a statement; a database that hangs must not block us. */
const ANSWER_MS = 10_000
/** How long a connection may take to close before it is destroyed. */
const GOODBYE_MS = 1000

/** Keeps our locks apart from those of other programs. */
const LOCKS = 7_219_006

/** PostgreSQL: one connection that writes, a few that read. A lost connection is replaced at the next use. */
export async function openPostgres(
  url: string,
  answerMs = ANSWER_MS,
  idleMs = 3 * answerMs,
): Promise<Engine> {
  const config = settingsOf(url, answerMs, idleMs)
  const readers = new pg.Pool({ ...config, max: READERS })
  readers.on('error', () => {})
  const sockets = new Set<pg.Client>()
  readers.on('connect', (client) => noteSocket(sockets, client as pg.Client))
  let writer: pg.Client | undefined
  const connected = async (): Promise<pg.Client> => {
    if (writer) return writer
    const client = new pg.Client(config)
    client.on('error', () => {
      if (writer === client) writer = undefined
    })
    await client.connect()
    noteSocket(sockets, client)
    writer = client
    return client
  }
  /** After a timeout the state of the connection is unknown, so it is never used again. */
  const drop = (): void => {
    const lost = writer
    writer = undefined
    if (lost) tearDown(lost)
  }
  const ask = async (client: () => Promise<pg.Client>, sql: string, params: readonly Value[] = []) => {
    try {
      return rowsIn(await (await client()).query(numbered(sql), [...params]))
    } catch (error) {
      if (isLost(error)) drop()
      throw unanswered(error)
    }
  }
  const open = async (): Promise<pg.Client> => {
    if (!writer) throw new SandboxError('store-unwritable', 'the connection to the database was lost')
    return writer
  }
  const tx: Tx = { run: (sql, params = []) => ask(open, sql, params) }
  return {
    kind: 'postgres',
    async read(sql, params = []) {
      try {
        return rowsIn(await readers.query(numbered(sql), [...params]))
      } catch (error) {
        throw unanswered(error)
      }
    },
    async begin(first, locks = []) {
      // What the first query returns is the last result, so the locks come before it: it must see what they waited for.
      const began = ask(connected, ['BEGIN', lockQuery(locks), first?.sql].filter(Boolean).join('; '))
      const rows = await began.catch((error: unknown) => {
        drop()
        throw error
      })
      try {
        first?.check(rows)
      } catch (error) {
        await writer?.query('ROLLBACK').catch(drop)
        throw error
      }
      return tx
    },
    async commit() {
      await ask(open, 'COMMIT').catch((error: unknown) => {
        drop()
        throw error
      })
    },
    async rollback() {
      await writer?.query('ROLLBACK').catch(drop)
    },
    async close() {
      const last = writer
      writer = undefined
      const ended = Promise.all([last?.end(), readers.end()])
      ended.catch(() => {})
      await Promise.race([ended, new Promise((resolve) => setTimeout(resolve, GOODBYE_MS).unref())])
      for (const client of sockets) tearDown(client)
    },
  }
}

/**
 * Locks in one order for all transactions, so that no two of them wait for each other. SECURITY: names of callers are in the text of
 * the query, because one message with several statements has no parameters; as hexadecimal digits they are nothing but digits.
 */
function lockQuery(names: readonly string[]): string {
  if (names.length === 0) return ''
  const each = names.map((name) => `('${Buffer.from(name).toString('hex')}')`)
  return `SELECT pg_advisory_xact_lock(key) FROM (SELECT DISTINCT hashtextextended(convert_from(decode(name, 'hex'), 'UTF8'), ${LOCKS}) AS key
    FROM (VALUES ${each.join(',')}) AS given(name) ORDER BY 1) AS ordered`
}

/** Timeouts on both sides: the statement may be slow, or the server may not respond at all. */
const settingsOf = (url: string, answerMs: number, idleMs: number): pg.ClientConfig => ({
  connectionString: url,
  connectionTimeoutMillis: answerMs,
  query_timeout: answerMs,
  statement_timeout: answerMs,
  // Another client that hangs in a transaction must not lock the audit log's head forever.
  idle_in_transaction_session_timeout: Math.round(idleMs),
  keepAlive: true,
  types: numbers(),
})

function noteSocket(sockets: Set<pg.Client>, client: pg.Client): void {
  sockets.add(client)
  client.once('end', () => sockets.delete(client))
}

/** Destroys the connection without a protocol message, because the server may not respond. */
function tearDown(client: pg.Client): void {
  const { connection } = client as unknown as { connection?: { stream?: { destroy(): void } } }
  connection?.stream?.destroy()
}

/** PLATFORM: errors of pg's own timeouts have no code; errors of the server or the system have one. */
const isLost = (error: unknown): boolean =>
  !(error instanceof SandboxError) && typeof (error as { code?: unknown }).code !== 'string'

function unanswered(error: unknown): unknown {
  if (!isLost(error)) return error
  return new SandboxError('store-unwritable', `the database does not respond: ${(error as Error).message}`, {
    hint: 'check the database, and repeat the request when it responds again',
    retryAfterSecs: 5,
    cause: error,
  })
}

/** PLATFORM: of several statements in one query there are several results; the last one counts. */
const rowsIn = (result: Rows | readonly Rows[]): readonly Row[] =>
  Array.isArray(result) ? ((result as readonly Rows[]).at(-1)?.rows ?? []) : (result as Rows).rows
type Rows = { readonly rows: readonly Row[] }

/** Parses bigint as number: counts and times stay far below 2^53. */
function numbers(): pg.CustomTypesConfig {
  return {
    getTypeParser: ((oid: number, format?: 'text') =>
      oid === INT8
        ? (text: string): Value => Number(text)
        : pg.types.getTypeParser(oid, format)) as typeof pg.types.getTypeParser,
  }
}
