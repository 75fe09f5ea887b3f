import pg from 'pg'
import { SandboxError } from '../model/errors.ts'
import { type Engine, numbered, type Row, type Tx, type Value } from './sql.ts'

const READERS = 8
const WAIT_MS = 10_000
const INT8 = 20

/** PostgreSQL: one connection that writes, a few that read. A lost connection is replaced at the next use. */
export async function openPostgres(url: string): Promise<Engine> {
  const config = { connectionString: url, connectionTimeoutMillis: WAIT_MS, types: numbers() }
  const readers = new pg.Pool({ ...config, max: READERS })
  readers.on('error', () => {})
  let writer: pg.Client | undefined
  const connected = async (): Promise<pg.Client> => {
    if (writer) return writer
    const client = new pg.Client(config)
    client.on('error', () => {
      if (writer === client) writer = undefined
    })
    await client.connect()
    writer = client
    return client
  }
  const drop = (): void => {
    const lost = writer
    writer = undefined
    void lost?.end().catch(() => {})
  }
  const open = (): pg.Client => {
    if (!writer) throw new SandboxError('store-unwritable', 'the connection to the database was lost')
    return writer
  }
  const tx: Tx = { run: async (sql, params = []) => rowsIn(await open().query(numbered(sql), [...params])) }
  return {
    kind: 'postgres',
    read: async (sql, params = []) => rowsIn(await readers.query(numbered(sql), [...params])),
    async begin() {
      const client = await connected()
      try {
        await client.query('BEGIN')
      } catch (error) {
        drop()
        throw error
      }
      return tx
    },
    async commit() {
      try {
        await open().query('COMMIT')
      } catch (error) {
        drop()
        throw error
      }
    },
    async rollback() {
      await writer?.query('ROLLBACK').catch(drop)
    },
    async close() {
      const last = writer
      writer = undefined
      await Promise.all([last?.end(), readers.end()])
    },
  }
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
