import { SandboxError } from '../errors.ts'

/** What the check of a file with a secret needs to know of it, and who reads it. */
type SecretFile = {
  readonly file: string
  readonly mode: number
  readonly uid: number
  /** The effective user id of this process. */
  readonly reader: number | undefined
}

/**
 * Throws if other users may read or write a file with a secret. A group may read a file of root if we are not root: that is how
 * root gives a service a file, and how Kubernetes mounts secrets for one.
 */
export function assertPrivateFile(what: string, { file, mode, uid, reader }: SecretFile): void {
  const byGroup = uid === 0 && reader !== 0 ? 0o040 : 0
  if ((mode & 0o077 & ~byGroup) === 0) return
  throw new SandboxError(
    'invalid-config',
    `${what} is not private: other users may read or write \`${file}\``,
    { hint: `chmod 600 '${file}'` },
  )
}
