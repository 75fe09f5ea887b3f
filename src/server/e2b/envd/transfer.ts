import { createHash, timingSafeEqual } from 'node:crypto'
import { posix } from 'node:path'
import { Readable } from 'node:stream'
import { createGunzip } from 'node:zlib'
import { SandboxError } from '../../../model/errors.ts'
import type { OpenSandbox } from '../../../supervisor/open-sandbox.ts'
import { bytesOf } from '../../body.ts'
import { basicUser, type E2bParts, filesOf, pathOf, type SandboxRequest, within } from '../sandbox-request.ts'
import { reading } from './filesystem.ts'
import { parts } from './multipart.ts'

type FileMetadata = NonNullable<Parameters<OpenSandbox['files']['write']>[2]>

/** `/files`: whole files in and out, as streams. */

export async function download(guest: SandboxRequest, query: URLSearchParams): Promise<Response> {
  const { home } = filesOf(guest, query.get('username') ?? basicUser(guest.request))
  const path = pathOf(query.get('path') ?? undefined, home)
  return within(guest, () =>
    reading(async () => {
      const source = guest.sandbox.files.readStream(path)[Symbol.asyncIterator]()
      // Two pieces are awaited: a missing file is an answer and not a broken stream, and a small one has its length.
      const first = await source.next()
      const second = first.done ? first : await source.next()
      return second.done
        ? whole(first.done ? undefined : first.value)
        : streamed(source, [first.value, second.value])
    }),
  )
}

const HEADERS = {
  'content-type': 'application/octet-stream',
  // SECURITY: what a sandbox wrote is never shown as a page of ours.
  'content-disposition': 'attachment',
  'x-content-type-options': 'nosniff',
}

const whole = (bytes: Uint8Array | undefined): Response =>
  new Response(bytes === undefined ? '' : Buffer.from(bytes), {
    headers: { ...HEADERS, 'content-length': String(bytes?.length ?? 0) },
  })

function streamed(source: AsyncGenerator<Uint8Array>, ready: (Uint8Array | undefined)[]): Response {
  const stream = new ReadableStream<Uint8Array>({
    async pull(controller) {
      const next = ready.shift() ?? (await source.next()).value
      if (next) controller.enqueue(next)
      else controller.close()
    },
    async cancel() {
      await source.return(undefined)
    },
  })
  return new Response(stream, { headers: HEADERS })
}

/** Writes uploaded files to the sandbox. */
export async function upload(guest: SandboxRequest, query: URLSearchParams): Promise<Response> {
  const { files, home } = filesOf(guest, query.get('username') ?? basicUser(guest.request))
  const { request } = guest
  const metadata = metadataOf(request.headers)
  const type = request.headers.get('content-type') ?? ''
  const asked = query.get('path') ?? undefined
  return within(guest, async () => {
    const written = /^multipart\/form-data\b/i.test(type)
      ? await uploadForm({ request, files, home, metadata }, type, asked)
      : [await uploadOne({ files, metadata }, pathOf(requirePath(asked), home), plainBody(request))]
    return Response.json(written)
  })
}

function requirePath(path: string | undefined): string {
  if (path) return path
  throw new SandboxError('invalid-input', 'the address names no path')
}

const MOST_METADATA = 2048

/** The metadata in `X-Metadata-…` headers. SECURITY: it is kept in an inode, which has little room. */
function metadataOf(headers: Headers): FileMetadata | undefined {
  const pairs = [...headers]
    .filter(([name]) => name.startsWith('x-metadata-'))
    .map(([name, value]) => [name.slice('x-metadata-'.length), value] as const)
  if (pairs.length === 0) return undefined
  if (pairs.some(([name, value]) => !/^[!-~]{1,200}$/.test(name) || !/^[ -~]*$/.test(value)))
    throw new SandboxError('invalid-input', 'the metadata of a file is not plain ASCII')
  if (pairs.flat().join('').length > MOST_METADATA)
    throw new SandboxError('too-large', `the metadata of a file is larger than ${MOST_METADATA} bytes`)
  return Object.fromEntries(pairs)
}

/** An upload of one or many files; all get the same metadata. */
type Upload = {
  readonly request: Request
  readonly files: OpenSandbox['files']
  readonly home: string
  readonly metadata: FileMetadata | undefined
}

async function uploadForm(upload: Upload, type: string, asked: string | undefined): Promise<unknown[]> {
  const written: unknown[] = []
  for await (const part of parts(rawBody(upload.request), type)) {
    if (part.name !== 'file') continue
    written.push(await uploadOne(upload, pathOf(requirePath(asked ?? part.filename), upload.home), part.data))
  }
  if (written.length === 0) throw new SandboxError('invalid-input', 'the form holds no file')
  return written
}

async function uploadOne(
  { files, metadata }: Pick<Upload, 'files' | 'metadata'>,
  path: string,
  data: AsyncIterable<Uint8Array>,
): Promise<unknown> {
  await files.write(path, data, metadata)
  return { name: posix.basename(path), path, type: 'file', ...(metadata ? { metadata } : {}) }
}

async function* rawBody(request: Request): AsyncGenerator<Uint8Array, void> {
  if (!request.body) return
  yield* bytesOf(request.body)
}

function plainBody(request: Request): AsyncIterable<Uint8Array> {
  const coding = request.headers.get('content-encoding') ?? 'identity'
  if (coding === 'identity') return rawBody(request)
  if (coding !== 'gzip') throw new SandboxError('invalid-input', `the coding \`${coding}\` is not known here`)
  return unzipped(rawBody(request))
}

async function* unzipped(data: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array, void> {
  try {
    yield* Readable.from(data).pipe(createGunzip()) as AsyncIterable<Uint8Array>
  } catch (cause) {
    throw new SandboxError('invalid-input', 'the body is not gzip', { cause })
  }
}

/** Whether a signed address has expired. */
export const isExpired = (query: URLSearchParams): boolean => {
  const expires = query.get('signature_expiration')
  return expires !== null && !(Number(expires) * 1000 > Date.now())
}

/** A SHA-256 in base64, as E2B's clients write it, and the second in which it expires. */
const SIGNATURE = /^v1_[A-Za-z0-9+/]{43}$/
const EXPIRATION = /^-?\d{1,16}(\.\d{1,16})?$/

/** SECURITY: whether there can be a signature at all; what cannot be one is not looked for. */
export const isSignature = (query: URLSearchParams): boolean =>
  SIGNATURE.test(query.get('signature') ?? '') && EXPIRATION.test(query.get('signature_expiration') ?? '0')

/**
 * Which of the running sandboxes an address was signed for: it holds no id, so each one's token is tried. SECURITY: also
 * finds the sandbox of an expired address; callers must check `isExpired`.
 */
export function signedSandbox(
  ids: readonly string[],
  method: string,
  query: URLSearchParams,
  { tokens }: { readonly tokens: Pick<E2bParts['tokens'], 'access'> },
): string | undefined {
  if (!isSignature(query)) return undefined
  const given = Buffer.from(query.get('signature') ?? '')
  const expires = query.get('signature_expiration')
  const words = [query.get('path') ?? '', method === 'GET' ? 'read' : 'write', query.get('username') ?? '']
  // SECURITY: a path may be long, so it is hashed once and not once for each sandbox.
  const begun = createHash('sha256').update(`${words.join(':')}:`)
  return ids.find((id) => {
    const rest = [tokens.access(id), ...(expires === null ? [] : [expires])].join(':')
    const own = Buffer.from(`v1_${begun.copy().update(rest).digest('base64').replace(/=+$/, '')}`)
    return own.length === given.length && timingSafeEqual(own, given)
  })
}
