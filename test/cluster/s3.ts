import { spawn, spawnSync } from 'node:child_process'
import { mkdtempSync, readdirSync, rmSync, statSync } from 'node:fs'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { AwsClient } from 'aws4fetch'
import S3rver from 's3rver'

const BUCKET = 'archives'

/** An S3 server for tests, with one bucket. */
export type S3Server = {
  readonly url: string
  /** The configuration and the environment of a node that uses it. */
  readonly config: (more?: string) => string
  readonly env: Readonly<Record<string, string>>
  /** The files of all objects. */
  readonly objects: () => readonly string[]
  /** Whether it refuses a wrong signature; s3rver does not. */
  readonly checksSignatures: boolean
  readonly close: () => Promise<void>
}

/** Debian's own interpreter has Debian's packages. */
const PYTHON = '/usr/bin/python3'

/** The S3 servers that are here: one from npm, and in full runs OpenStack Swift of Debian (python3-swift), which checks signatures strictly. */
export const S3_SERVERS: readonly (readonly [string, () => Promise<S3Server>])[] = [
  ['s3rver', startS3],
  ...(hasSwift() ? [['swift', startSwift] as const] : []),
]

function hasSwift(): boolean {
  if (process.env.RINGFENCE_FULL !== '1') return false
  const has = spawnSync(PYTHON, ['-c', 'import swift, eventlet']).status === 0
  if (!has) process.stderr.write('skipped: archives in swift: python3-swift is not installed\n')
  return has
}

async function startSwift(): Promise<S3Server> {
  const directory = mkdtempSync(join(tmpdir(), 'rf-swift-'))
  const child = spawn(PYTHON, [join(import.meta.dirname, 'swift-server.py'), directory], {
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  const line = await new Promise<string>((resolve, reject) => {
    createInterface({ input: child.stdout }).once('line', resolve)
    child.once('exit', () => reject(new Error('swift ended at once')))
  })
  const { port } = JSON.parse(line) as { port: number }
  const bucket = `http://127.0.0.1:${port}/${BUCKET}`
  const env = { RINGFENCE_STORAGE_KEY_ID: 'test:tester', RINGFENCE_STORAGE_SECRET: 'testing' }
  const keys = { accessKeyId: 'test:tester', secretAccessKey: 'testing' }
  const made = await new AwsClient({ ...keys, service: 's3', region: 'us-east-1' }).fetch(bucket, {
    method: 'PUT',
  })
  if (!made.ok) throw new Error(`swift: ${made.status} ${await made.text()}`)
  return {
    checksSignatures: true,
    url: `${bucket}/fleet`,
    config: (more = '') => `[storage]\nurl = "${bucket}/fleet"\n${more}\n`,
    env,
    objects: () =>
      (readdirSync(directory, { recursive: true }) as string[])
        .map((name) => join(directory, name))
        // Objects that were changed on the disk are moved elsewhere.
        .filter((path) => path.endsWith('.data') && path.includes('/sda1/objects/')),
    close: async () => {
      child.kill()
      rmSync(directory, { recursive: true, force: true })
    },
  }
}

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
    checksSignatures: false,
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
