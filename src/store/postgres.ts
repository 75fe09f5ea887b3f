import pg from 'pg'
import { SandboxError } from '../model/errors.ts'
import { type Engine, numbered, type Row, type Tx, type Value } from './sql.ts'

const READERS = 8
const INT8 = 20
/** How long a statement may take unless told otherwise; a database that hangs must not hang us. */
const ANSWER_MS = 10_000
/** What is left of a connection that should close is torn down then. */
const GOODBYE_MS = 1000

/** PostgreSQL: one connection that writes, a few that read. A lost connection is replaced at the next use. */
export async function openPostgres(url: string, answerMs = ANSWER_MS): Promise<Engine> {
  const config = settingsOf(url, answerMs)
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
  /** After a time-out nobody knows what the connection still does: it is never used again. */
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
    async begin() {
      await ask(connected, 'BEGIN').catch((error: unknown) => {
        drop()
        throw error
      })
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

/** Both sides count: the server may be well and the statement slow, or the server may not answer at all. */
const settingsOf = (url: string, answerMs: number): pg.ClientConfig => ({
  connectionString: url,
  connectionTimeoutMillis: answerMs,
  query_timeout: answerMs,
  statement_timeout: answerMs,
  // A neighbour that hangs in the middle of a transaction must not hold the audit log's head for ever.
  idle_in_transaction_session_timeout: 3 * answerMs,
  keepAlive: true,
  types: numbers(),
})

function noteSocket(sockets: Set<pg.Client>, client: pg.Client): void {
  sockets.add(client)
  client.once('end', () => sockets.delete(client))
}

/** Without a word: a server that does not answer does not say goodbye either. */
function tearDown(client: pg.Client): void {
  const { connection } = client as unknown as { connection?: { stream?: { destroy(): void } } }
  connection?.stream?.destroy()
}

/** PLATFORM: what pg itself gives up on has no code; what the server or the system says has one. */
const isLost = (error: unknown): boolean =>
  !(error instanceof SandboxError) && typeof (error as { code?: unknown }).code !== 'string'

function unanswered(error: unknown): unknown {
  if (!isLost(error)) return error
  return new SandboxError('store-unwritable', `the database does not answer: ${(error as Error).message}`, {
    hint: 'look at the database; what was asked can be repeated when it answers again',
    retryAfterSecs: 5,
    cause: error,
  })
}

const rowsIn = (result: { readonly rows: readonly Row[] }): readonly Row[] => result.rows

/** Counts and times stay far below 2^53. */
function numbers(): pg.CustomTypesConfig {
  return {
    getTypeParser: ((oid: number, format?: 'text') =>
      oid === INT8
        ? (text: string): Value => Number(text)
        : pg.types.getTypeParser(oid, format)) as typeof pg.types.getTypeParser,
  }
}
