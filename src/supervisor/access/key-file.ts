import { randomBytes } from 'node:crypto'
import { existsSync } from 'node:fs'
import { writeAtomically } from '../../host/files/atomic-file.ts'
import { readPrivateFile } from '../../host/secrets/private-file.ts'
import { SandboxError } from '../../model/errors.ts'

const BYTES = 32

/** Loads a secret of this state directory (mode 0600), or creates it at the first start. */
export function loadKeyFile(
  file: string,
  { name, ifRemoved }: { readonly name: string; readonly ifRemoved: string },
): Buffer {
  if (!existsSync(file)) writeAtomically(file, `${randomBytes(BYTES).toString('hex')}\n`)
  const secret = Buffer.from(readPrivateFile(`the ${name}`, file).toString().trim(), 'hex')
  if (secret.length === BYTES) return secret
  throw new SandboxError('invalid-config', `the ${name} in the state directory is corrupt`, {
    hint: `restore it, or remove it (${ifRemoved})`,
  })
}
