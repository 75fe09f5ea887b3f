import { SandboxError } from '../model/errors.ts'
import type { Store } from '../store/sql.ts'
import { ArchiveStore } from '../supervisor/archives/archive-store.ts'
import { openS3, type S3Settings, type Signer } from '../supervisor/archives/s3.ts'
import type { Ringfence } from './compose.ts'
import type { Membership } from './serve-cluster.ts'

/** Signs requests to S3 and AWS; an optional package. */
export const awsSigner = (): Promise<Signer> => import('aws4fetch')

/** The store of archives of `[storage]`; undefined if there is none. */
export async function archiveStoreOf(
  { config, env }: Pick<Ringfence, 'config' | 'env'>,
  store: Store,
  membership: Membership | undefined,
): Promise<ArchiveStore | undefined> {
  const { storage } = config
  if (!storage) return undefined
  if (!membership)
    throw new SandboxError('invalid-config', '[storage] needs [cluster]', {
      hint: 'a server that is alone keeps its archives in its state directory; remove [storage]',
    })
  const objects = await openS3(settingsOf(storage, env), awsSigner)
  return new ArchiveStore({
    objects,
    store,
    ...(storage.encrypt && { key: membership.key.derive('archives') }),
  })
}

function settingsOf(
  { url, region = 'us-east-1' }: NonNullable<Ringfence['config']['storage']>,
  env: Ringfence['env'],
): S3Settings {
  const parsed = URL.canParse(url) ? new URL(url) : undefined
  const isBucket = parsed && /^https?:$/.test(parsed.protocol) && parsed.pathname.length > 1
  if (!isBucket || parsed.username || parsed.search)
    throw new SandboxError('invalid-config', '[storage] url is not `https://host/bucket`')
  const keyId = env.RINGFENCE_STORAGE_KEY_ID ?? env.AWS_ACCESS_KEY_ID
  const secret = env.RINGFENCE_STORAGE_SECRET ?? env.AWS_SECRET_ACCESS_KEY
  if (!keyId || !secret)
    throw new SandboxError('invalid-config', '[storage] has no credentials', {
      hint: 'set RINGFENCE_STORAGE_KEY_ID and RINGFENCE_STORAGE_SECRET in the environment of the server',
    })
  return { url, region, keyId, secret, sessionToken: env.AWS_SESSION_TOKEN }
}
