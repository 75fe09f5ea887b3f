import { SandboxError } from '../../model/errors.ts'

/** Objects by name, as an S3-compatible store keeps them. */
export interface ObjectStore {
  put(name: string, bytes: Uint8Array): Promise<void>
  /** Fails when the object is larger. */
  get(name: string, maxBytes: number): Promise<Uint8Array>
  /** Removing what is not there is no error. */
  remove(name: string): Promise<void>
}

/** The part of `aws4fetch` that is used here. */
export type Signer = {
  readonly AwsClient: new (options: {
    accessKeyId: string
    secretAccessKey: string
    sessionToken?: string
    region?: string
    service?: string
    retries?: number
  }) => {
    fetch(url: string, init?: RequestInit): Promise<Response>
    sign(url: string, init?: RequestInit): Promise<Request>
  }
}

/** Where the objects are, and who may use them. */
export type S3Settings = {
  /** `https://host/bucket/prefix`. */
  readonly url: string
  readonly region: string
  readonly keyId: string
  readonly secret: string
  readonly sessionToken?: string | undefined
}

const ANSWER_MS = 60_000
const TRIES = 3

/** An S3-compatible store; requests are signed by `aws4fetch`, which is an optional dependency. */
export async function openS3(settings: S3Settings, load: () => Promise<Signer>): Promise<ObjectStore> {
  const { AwsClient } = await load().catch((cause: unknown) => {
    throw new SandboxError('invalid-config', '[storage] needs the package `aws4fetch`', {
      hint: 'install it beside ringfence: `npm install aws4fetch`',
      cause,
    })
  })
  const client = new AwsClient({
    accessKeyId: settings.keyId,
    secretAccessKey: settings.secret,
    ...(settings.sessionToken && { sessionToken: settings.sessionToken }),
    region: settings.region,
    service: 's3',
    retries: 0,
  })
  const base = settings.url.replace(/\/+$/, '')
  const ask = async (method: string, name: string, body?: Uint8Array): Promise<Response> => {
    let last: unknown
    for (let attempt = 0; attempt < TRIES; attempt++) {
      const answer = await client
        .fetch(`${base}/${name}`, {
          method,
          ...(body && { body: body as RequestInit['body'] & Uint8Array }),
          signal: AbortSignal.timeout(ANSWER_MS),
          redirect: 'error',
        })
        .catch((error: unknown) => {
          last = error
          return undefined
        })
      if (answer && (answer.ok || answer.status === 404)) return answer
      if (answer) {
        last = new Error(`status ${answer.status}: ${(await answer.text().catch(() => '')).slice(0, 200)}`)
        // Anything but an overloaded store answers the same the next time.
        if (answer.status < 500 && answer.status !== 429) break
      }
      await new Promise((resolve) => setTimeout(resolve, 100 * 2 ** attempt))
    }
    throw unavailable(method, last)
  }
  return {
    put: async (name, bytes) => {
      const answer = await ask('PUT', name, bytes)
      if (!answer.ok) throw unavailable('PUT', new Error('no such bucket'))
      await answer.arrayBuffer()
    },
    get: async (name, maxBytes) => {
      const answer = await ask('GET', name)
      if (answer.ok) return bounded(answer, name, maxBytes)
      throw unavailable('GET', new Error(`there is no object \`${name}\``))
    },
    remove: async (name) => void (await ask('DELETE', name)),
  }
}

/** SECURITY: a client that can write to the store must not be able to fill our memory. */
async function bounded(answer: Response, name: string, maxBytes: number): Promise<Uint8Array> {
  const chunks: Uint8Array[] = []
  let size = 0
  for await (const chunk of answer.body ?? []) {
    size += chunk.length
    if (size > maxBytes) throw unavailable('GET', new Error(`the object \`${name}\` is too large`))
    chunks.push(chunk)
  }
  return Buffer.concat(chunks)
}

const unavailable = (method: string, cause: unknown): SandboxError =>
  new SandboxError(
    'unreachable',
    `the archive store does not work: ${method}: ${(cause as Error)?.message}`,
    {
      hint: 'check [storage] and the store',
      retryAfterSecs: 10,
      cause,
    },
  )
