import { createHmac, randomBytes } from 'node:crypto'
import { existsSync, readFileSync } from 'node:fs'
import { writeAtomically } from '../../host/files/atomic-file.ts'
import { SandboxError } from '../../model/errors.ts'

const BYTES = 32
const FORM = /^rfs_([0-9a-f]{20})_[0-9a-f]{48}$/

/**
 * A sandbox's tokens, made from its id and a secret of this server. E2B's clients expect the same token again when they
 * connect, and sign addresses with it, so it must be known here in the clear; derived, it is never at rest.
 */
export class SandboxTokens {
  readonly #secret: Buffer

  constructor(secret: Buffer) {
    this.#secret = secret
  }

  /** Opens everything of one sandbox. */
  access(id: string): string {
    return `rfs_${bareId(id)}_${this.#mac(`access ${id}`)}`
  }

  /** Opens what a program in the sandbox serves. */
  traffic(id: string): string {
    return `rft_${this.#mac(`traffic ${id}`)}`
  }

  /** For an address that opens one thing without a key. */
  sign(text: string): string {
    return this.#mac(`address ${text}`)
  }

  #mac(text: string): string {
    return createHmac('sha256', this.#secret).update(text).digest('hex').slice(0, 48)
  }
}

const bareId = (id: string): string => id.replace(/^sb_/, '')

/** Which sandbox a token says it belongs to; whether that is true is checked elsewhere. */
export const claimedSandbox = (token: string): string | undefined => {
  const bare = FORM.exec(token)?.[1]
  return bare && `sb_${bare}`
}

/** The secret of this state directory; made at the first start. */
export function loadSandboxTokens(file: string): SandboxTokens {
  if (!existsSync(file)) writeAtomically(file, `${randomBytes(BYTES).toString('hex')}\n`)
  const secret = Buffer.from(readFileSync(file, 'utf8').trim(), 'hex')
  if (secret.length !== BYTES)
    throw new SandboxError(
      'invalid-config',
      'the secret of sandbox tokens in the state directory is damaged',
      {
        hint: 'restore it, or remove it: tokens that were given out then end',
      },
    )
  return new SandboxTokens(secret)
}
