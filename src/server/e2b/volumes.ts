import type { Context } from 'hono'
import { SandboxError } from '../../model/errors.ts'
import { number, object, optional, text } from '../../model/shape.ts'
import { timeText } from '../../model/text/time-text.ts'
import type { Principal, Scope } from '../../supervisor/access/keys.ts'
import type { Sandbox } from '../../supervisor/sandbox.ts'
import { insidePath, outsidePath } from '../../supervisor/volumes/volume-files.ts'
import type { VolumeRow } from '../../supervisor/volumes/volumes.ts'
import type { AppEnv } from '../app.ts'
import { authorize, enterByMaker } from '../auth.ts'
import { bytesOf, jsonBody } from '../body.ts'
import { attachment } from '../routes/files.ts'
import { same } from './data-plane.ts'
import { restProblem } from './errors.ts'
import { bodyOf, nothing, type RestCall, type RestRoute } from './rest.ts'
import type { E2bSurface } from './sandbox-request.ts'
import { withoutNulls } from './shapes.ts'

type FileInfo = Awaited<ReturnType<Sandbox['files']['stat']>>

/** E2B's volumes: their records by the caller's key, their files by a token of the volume. */

const newVolumeShape = withoutNulls(object({ name: text({ max: 128 }) }))

/** SECURITY: a token opens the files of one volume, for what the key that asked for it may do, and ends with that key. */
const tokenOf = ({ e2b }: E2bSurface, keyId: string, volumeId: string): string =>
  `rfv_${Buffer.from(keyId).toString('hex')}_${e2b.tokens.sign(`volume ${keyId} ${volumeId}`)}`

const infoOf = ({ id, name }: VolumeRow) => ({ volumeID: id, name })

const accessOf = ({ surface, principal }: RestCall, row: VolumeRow) => ({
  ...infoOf(row),
  token: tokenOf(surface, principal.keyId, row.id),
})

async function create(call: RestCall): Promise<Response> {
  const { name } = await bodyOf(call, newVolumeShape)
  const row = await call.surface.parts.volumes.create(call.principal, { name })
  return Response.json(accessOf(call, row), { status: 201 })
}

async function list({ surface, principal }: RestCall): Promise<Response> {
  return Response.json((await surface.parts.volumes.list(principal.tenant)).map(infoOf))
}

async function get(call: RestCall): Promise<Response> {
  const row = await call.surface.parts.volumes.get(call.principal.tenant, call.params.id ?? '')
  return Response.json(accessOf(call, row))
}

async function remove({ surface, principal, params }: RestCall): Promise<Response> {
  await surface.parts.volumeFiles.remove(principal, params.id ?? '')
  return nothing()
}

/** The routes of volumes. */
export const VOLUMES: readonly RestRoute[] = [
  { method: 'POST', path: '/volumes', scope: 'create', handle: create },
  { method: 'GET', path: '/volumes', scope: 'read', handle: list },
  { method: 'GET', path: '/volumes/:id', scope: 'create', handle: get },
  { method: 'DELETE', path: '/volumes/:id', scope: 'create', handle: remove },
]

/** One request for files of a volume, after its token was checked. */
type ContentCall = {
  readonly surface: E2bSurface
  readonly request: Request
  readonly principal: Principal
  readonly row: VolumeRow
  readonly query: URLSearchParams
  /** The path inside the sandbox that serves the volume. */
  readonly path: string
}

type ContentRoute = {
  readonly method: 'GET' | 'PUT' | 'POST' | 'PATCH' | 'DELETE'
  readonly path: string
  readonly scope: Scope
  readonly handle: (call: ContentCall) => Promise<Response>
}

const using = <T>(
  { surface, principal, row }: ContentCall,
  work: (sandbox: Sandbox) => Promise<T>,
): Promise<T> => surface.parts.volumeFiles.use(principal, row, work)

const TYPES = { file: 'file', dir: 'directory', link: 'symlink', other: 'unknown' } as const

/** Only the time of the last change is known. */
function statJson(info: FileInfo) {
  const time = timeText(info.modifiedMs)
  const path = outsidePath(info.path)
  return {
    name: path === '/' ? '/' : info.name,
    type: TYPES[info.kind],
    path,
    size: info.size,
    mode: info.mode,
    uid: info.uid,
    gid: info.gid,
    atime: time,
    mtime: time,
    ctime: time,
    ...(info.target === undefined ? {} : { target: info.target }),
  }
}

const stated = async ({ files }: Sandbox, path: string, status = 200): Promise<Response> =>
  Response.json(statJson(await files.stat(path)), { status })

const statOf = ({ files }: Sandbox, path: string): Promise<FileInfo | undefined> =>
  files.stat(path).catch((error: unknown) => {
    if (error instanceof SandboxError && error.httpStatus === 404) return undefined
    throw error
  })

const whole = (max: number) => number({ integer: true, min: 0, max })
const metadataShape = withoutNulls(
  object({
    uid: optional(whole(2 ** 32 - 1)),
    gid: optional(whole(2 ** 32 - 1)),
    mode: optional(whole(0o7777)),
  }),
)
type Metadata = ReturnType<typeof metadataShape.parse>

const metadataIn = (query: URLSearchParams): Metadata =>
  metadataShape.parse(
    Object.fromEntries(
      ['uid', 'gid', 'mode'].flatMap((name) => {
        const value = query.get(name)
        return value === null ? [] : [[name, /^\d{1,10}$/.test(value) ? Number(value) : Number.NaN]]
      }),
    ),
    '',
  )

/** The ids of `user` in E2B's own sandboxes. */
const USER = 1000

/** Everything in a volume belongs to the one user of the sandboxes that mount it. */
function checkOwner({ uid, gid }: Metadata, info: FileInfo): void {
  const known = (id: number | undefined, own: number): boolean =>
    id === undefined || id === own || id === USER
  if (known(uid, info.uid) && known(gid, info.gid)) return
  throw new SandboxError(
    'invalid-input',
    'the files of a volume belong to one user; their owner cannot be changed',
    {
      hint: 'leave `uid` and `gid` out',
    },
  )
}

async function applyMetadata(sandbox: Sandbox, path: string, metadata: Metadata): Promise<void> {
  checkOwner(metadata, await sandbox.files.stat(path))
  if (metadata.mode === undefined) return
  const { outcome } = await sandbox.exec(['chmod', metadata.mode.toString(8), path])
  if (outcome.kind !== 'exited' || outcome.code !== 0)
    throw new SandboxError('invalid-input', `the mode of \`${outsidePath(path)}\` cannot be changed`)
}

const exists = (path: string): SandboxError =>
  new SandboxError('file-exists', `\`${outsidePath(path)}\` exists already`, { hint: 'use `force`' })

const missing = (path: string): SandboxError =>
  new SandboxError('file-not-found', `there is no \`${outsidePath(path)}\``)

const parentOf = (path: string): string => path.slice(0, path.lastIndexOf('/'))

async function assertParent(sandbox: Sandbox, path: string): Promise<void> {
  const parent = await statOf(sandbox, parentOf(path))
  if (parent?.kind !== 'dir') throw missing(parentOf(path))
}

const info = (call: ContentCall): Promise<Response> => using(call, (sandbox) => stated(sandbox, call.path))

const patch = (call: ContentCall): Promise<Response> =>
  using(call, async (sandbox) => {
    await applyMetadata(sandbox, call.path, await jsonBody(call.request, metadataShape))
    return stated(sandbox, call.path)
  })

const removePath = (call: ContentCall): Promise<Response> =>
  using(call, async (sandbox) => {
    if (outsidePath(call.path) === '/')
      throw new SandboxError('invalid-input', 'the root of a volume cannot be removed', {
        hint: 'remove the volume itself',
      })
    await sandbox.files.stat(call.path)
    await sandbox.files.remove(call.path)
    return nothing()
  })

const listDir = (call: ContentCall): Promise<Response> =>
  using(call, async ({ files }) => {
    const depth = Math.min(MOST_DEPTH, Math.max(1, Number(call.query.get('depth') ?? 1) || 1))
    return Response.json((await files.entries(call.path, depth)).map(statJson))
  })
const MOST_DEPTH = 16

const makeDir = (call: ContentCall): Promise<Response> =>
  using(call, async (sandbox) => {
    const isForced = call.query.get('force') === 'true'
    const before = await statOf(sandbox, call.path)
    if (before && (!isForced || before.kind !== 'dir')) throw exists(call.path)
    if (!isForced) await assertParent(sandbox, call.path)
    if (!before) {
      await sandbox.files.makeDir(call.path)
      await applyMetadata(sandbox, call.path, metadataIn(call.query))
    }
    return stated(sandbox, call.path, 201)
  })

const readFile = async ({ surface, principal, row, path }: ContentCall): Promise<Response> => {
  const { volumeFiles } = surface.parts
  const size = await volumeFiles.use(principal, row, async ({ files }) => (await files.stat(path)).size)
  // PLATFORM: E2B's clients tell an empty file by its length.
  if (size === 0) return new Response('', { headers: { 'content-length': '0' } })
  return attachment(volumeFiles.read(principal, row, outsidePath(path)))
}

const writeFile = (call: ContentCall): Promise<Response> =>
  using(call, async (sandbox) => {
    const before = await statOf(sandbox, call.path)
    if (before && (before.kind === 'dir' || call.query.get('force') !== 'true')) throw exists(call.path)
    await assertParent(sandbox, call.path)
    await call.surface.parts.volumeFiles.write(call.row, sandbox, call.path, bytesOf(call.request.body))
    await applyMetadata(sandbox, call.path, metadataIn(call.query))
    return stated(sandbox, call.path, 201)
  })

/** The routes of files in volumes. */
export const VOLUME_CONTENT: readonly ContentRoute[] = [
  { method: 'GET', path: '/volumecontent/:id/path', scope: 'read', handle: info },
  { method: 'PATCH', path: '/volumecontent/:id/path', scope: 'exec', handle: patch },
  { method: 'DELETE', path: '/volumecontent/:id/path', scope: 'exec', handle: removePath },
  { method: 'GET', path: '/volumecontent/:id/dir', scope: 'read', handle: listDir },
  { method: 'POST', path: '/volumecontent/:id/dir', scope: 'exec', handle: makeDir },
  { method: 'GET', path: '/volumecontent/:id/file', scope: 'read', handle: readFile },
  { method: 'PUT', path: '/volumecontent/:id/file', scope: 'exec', handle: writeFile },
]

/** Checks the token of a request for files, and runs its handler. */
export async function serveContent(
  surface: E2bSurface,
  route: ContentRoute,
  context: Context<AppEnv>,
): Promise<Response> {
  try {
    const id = context.req.param('id') ?? ''
    const principal = await principalOf(surface, route, context, id)
    const query = new URL(context.req.url).searchParams
    const asked = query.get('path')
    if (!asked) throw new SandboxError('invalid-input', 'the request names no path')
    const row = await surface.parts.volumes.get(principal.tenant, id)
    return await route.handle({
      surface,
      request: context.req.raw,
      principal,
      row,
      query,
      path: insidePath(asked),
    })
  } catch (error) {
    return restProblem(error, surface.parts.log)
  }
}

async function principalOf(
  surface: E2bSurface,
  { scope }: ContentRoute,
  context: Context<AppEnv>,
  volumeId: string,
): Promise<Principal> {
  const token = /^Bearer (rfv_([0-9a-f]{2,128})_[0-9a-f]{48})$/.exec(
    context.req.header('authorization') ?? '',
  )
  if (!token) return surface.authenticate(context, scope)
  const principal = await enterByMaker(surface.parts, context, () => {
    const keyId = Buffer.from(token[2] ?? '', 'hex').toString()
    if (same(token[1] ?? '', tokenOf(surface, keyId, volumeId))) return keyId
    throw new SandboxError('unauthenticated', 'the token is not valid for this volume')
  })
  authorize(principal, scope, false)
  return principal
}
