import { SandboxError } from '../../../model/errors.ts'
import type { Principal } from '../../../supervisor/access/keys.ts'
import type { ImageTree, PullOptions } from '../../../supervisor/images/images.ts'
import { isPlainImage } from '../../dockerfile.ts'
import { templateFor } from '../create.ts'
import { HOME, type SandboxSurface } from '../sandbox-request.ts'
import type { BuildBody } from '../shapes.ts'
import { newName } from './builds.ts'

/** What a build starts from: this server's programs, a template, or an image of a registry. */

/** How far the steps have come. */
export type BuildState = { workdir: string; user: string; readonly env: Record<string, string> }

/** What a build starts from. */
export type BuildBase = {
  /** The template of the sandbox in which the steps run. */
  readonly template: string
  /** Whether that template is only for this build. */
  readonly isTemporary: boolean
  /** The digest of the image under its root. */
  readonly image: string | undefined
  /** Changes whenever the base does. */
  readonly key: string
  readonly state: BuildState
}

/** Finds or pulls what a build starts from. */
export async function baseOf(
  surface: SandboxSurface,
  principal: Principal,
  body: BuildBody,
  say: (line: string) => void,
): Promise<BuildBase> {
  const { fromImage, fromTemplate } = body
  if (fromTemplate !== undefined) return templateBase(surface, principal, fromTemplate)
  const isPlain = fromImage === undefined || isPlainImage(fromImage)
  if (isPlain && body.fromImageRegistry === undefined) return templateBase(surface, principal, 'base')
  return imageBase(surface, principal, body, say)
}

async function templateBase(
  surface: SandboxSurface,
  { tenant }: Principal,
  name: string,
): Promise<BuildBase> {
  const found = await templateFor(surface, tenant, name)
  const { env = {}, workdir = HOME, user = 'user', image } = found?.data ?? {}
  return {
    template: found?.id ?? 'base',
    isTemporary: false,
    image,
    key: found ? `template ${found.id} ${found.createdAt}` : 'base',
    state: { env: { ...env }, workdir, user },
  }
}

/** E2B's builds know their own user and directory, whatever the image says. */
const E2B_DEFAULTS = { workdir: HOME, user: 'user' }

/** As an engine reads an image: a group is not a part of the user here. */
const defaultsOf = ({ workdir, user }: ImageTree['config']): Pick<BuildState, 'workdir' | 'user'> => ({
  workdir: workdir?.startsWith('/') ? workdir : '/',
  user: user?.replace(/:.*$/s, '') || 'root',
})

/** The image is recorded for the tenant while the build needs it, so that a sandbox can be created from it. */
async function imageBase(
  { parts, e2b }: SandboxSurface,
  { tenant, keyId }: Principal,
  { fromImage = '', fromImageRegistry, usesImageDefaults }: BuildBody,
  say: (line: string) => void,
): Promise<BuildBase> {
  const missing = e2b.rootsUnavailable()
  if (missing)
    throw new SandboxError('unsupported', `the image \`${fromImage}\` cannot be used: ${missing.reason}`, {
      hint: missing.fix,
    })
  const { digest, name, config } = await parts.images.pull(fromImage, {
    credentials: credentialsOf(fromImageRegistry),
    tenant,
    say,
  })
  await e2b.record({
    event: 'PolicyDecision',
    subject: 'image',
    action: 'allow',
    image: name,
    digest,
    tenant,
    key_id: keyId,
  })
  const id = newName('img')
  const data = { env: config.env, image: digest, places: 0, paths: [] }
  const row = { id, kind: 'image' as const, tenant, name: null, sandboxId: null, backend: 'bubblewrap' }
  await e2b.templates.save({ ...row, createdAt: Date.now(), data })
  return {
    template: id,
    isTemporary: true,
    image: digest,
    key: `image ${digest}${usesImageDefaults ? ' with its configuration' : ''}`,
    state: { env: { ...config.env }, ...(usesImageDefaults ? defaultsOf(config) : E2B_DEFAULTS) },
  }
}

function credentialsOf(registry: BuildBody['fromImageRegistry']): PullOptions['credentials'] {
  if (registry === undefined) return undefined
  const { type, username, password, serviceAccountJson } = registry
  if (type === 'registry' && username !== undefined && password !== undefined) return { username, password }
  // Google's registries take the key of a service account as the password of this user.
  if (type === 'gcp' && serviceAccountJson !== undefined)
    return { username: '_json_key', password: serviceAccountJson }
  const { awsAccessKeyId: accessKeyId, awsSecretAccessKey: secretAccessKey, awsRegion: region } = registry
  if (type === 'aws' && accessKeyId !== undefined && secretAccessKey !== undefined && region !== undefined)
    return { accessKeyId, secretAccessKey, region }
  throw new SandboxError(
    'unsupported',
    `credentials of the type \`${type.slice(0, 32)}\` are not supported`,
    {
      hint: 'use a user name and a password, or the credentials of AWS or Google',
    },
  )
}
