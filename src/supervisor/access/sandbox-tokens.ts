import { createHmac } from 'node:crypto'
import { loadKeyFile } from './key-file.ts'

const FORM = /^rfs_([0-9a-f]{20})_[0-9a-f]{48}$/

/**
 * A sandbox's tokens, derived from its id and a secret of this server. E2B's clients expect the same token again when
 * they reconnect and sign URLs with it, so the server needs the plain token; deriving it avoids storing it.
 */
export class SandboxTokens {
  readonly #secret: Buffer

  constructor(secret: Buffer) {
    this.#secret = secret
  }

  /** Grants access to everything in one sandbox. */
  access(id: string): string {
    return `rfs_${bareId(id)}_${this.#mac(`access ${id}`)}`
  }

  /** Grants access to the ports that programs in the sandbox serve. */
  traffic(id: string): string {
    return `rft_${this.#mac(`traffic ${id}`)}`
  }

  /** Signs a URL that gives access to one resource without a key. */
  sign(text: string): string {
    return this.#mac(`address ${text}`)
  }

  #mac(text: string): string {
    return createHmac('sha256', this.#secret).update(text).digest('hex').slice(0, 48)
  }
}

const bareId = (id: string): string => id.replace(/^sb_/, '')

/** The sandbox id that a token claims; the caller verifies the token. */
export const claimedSandbox = (token: string): string | undefined => {
  const bare = FORM.exec(token)?.[1]
  return bare && `sb_${bare}`
}

/** Loads the secret of this state directory, or creates it at the first start. */
export const loadSandboxTokens = (file: string): SandboxTokens =>
  new SandboxTokens(
    loadKeyFile(file, { name: 'sandbox token secret', ifRemoved: 'this invalidates all issued tokens' }),
  )
