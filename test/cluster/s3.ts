import { mkdtempSync, readdirSync, rmSync, statSync } from 'node:fs'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import S3rver from 's3rver'

/** An S3 server for tests, with one bucket. */
export type S3Server = {
  readonly url: string
  /** The configuration and the environment of a node that uses it. */
  readonly config: (more?: string) => string
  readonly env: Readonly<Record<string, string>>
  /** The files of all objects. */
  readonly objects: () => readonly string[]
  readonly close: () => Promise<void>
}

const BUCKET = 'archives'

export async function startS3(): Promise<S3Server> {
  const directory = mkdtempSync(join(tmpdir(), 'rf-s3-'))
  const server = new S3rver({
    port: 0,
    address: '127.0.0.1',
    silent: true,
    directory,
    configureBuckets: [{ name: BUCKET, configs: [] }],
  })
  const { port } = (await server.run()) as AddressInfo
  const url = `http://127.0.0.1:${port}/${BUCKET}/fleet`
  return {
    url,
    config: (more = '') => `[storage]\nurl = "${url}"\n${more}\n`,
    env: { RINGFENCE_STORAGE_KEY_ID: 'S3RVER', RINGFENCE_STORAGE_SECRET: 'S3RVER' },
    objects: () =>
      (readdirSync(directory, { recursive: true }) as string[])
        .map((name) => join(directory, name))
        .filter((path) => path.endsWith('_object') && statSync(path).isFile()),
    close: async () => {
      await server.close().catch(() => {})
      rmSync(directory, { recursive: true, force: true })
    },
  }
}
