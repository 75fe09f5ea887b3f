import { decrypt, encrypt } from '../../host/secrets/authenticated-cipher.ts'
import { SandboxError } from '../../model/errors.ts'
import type { Store } from '../../store/sql.ts'
import { listWebhooks, replaceWebhookSecrets, type WebhookRow } from '../../store/webhooks.ts'
import { loadKeyFile } from '../access/key-file.ts'

const PREFIX = 'sealed:1:'

/** Encrypts webhook secrets for the store, so that a copy of the database alone signs nothing. */
export class WebhookSecrets {
  readonly #key: Buffer
  readonly #earlier: readonly Buffer[]

  /** `earlier`: keys that this server used before, to read what they encrypted. */
  constructor(key: Buffer, earlier: readonly Buffer[] = []) {
    this.#key = key
    this.#earlier = earlier
  }

  /** SECURITY: bound to the webhook's id, so that a secret copied to another row does not open. */
  seal(id: string, secret: string): string {
    return `${PREFIX}${encrypt(this.#key, Buffer.from(secret), id).toString('base64')}`
  }

  /** The secret of a webhook; throws if no key of this server opens it. */
  open({ id, storedSecret }: Pick<WebhookRow, 'id' | 'storedSecret'>): string {
    for (const key of [this.#key, ...this.#earlier]) {
      const secret = unseal(key, id, storedSecret)
      if (secret !== undefined) return secret
    }
    throw new SandboxError('wrong-state', `the secret of the webhook \`${id}\` cannot be decrypted`, {
      hint: 'restore `webhook-secrets.key` in the state directory, or delete the webhook and create it again',
    })
  }

  /** Whether the stored form is plain text of an older version, or encrypted with an earlier key. */
  isOutdated({ id, storedSecret }: Pick<WebhookRow, 'id' | 'storedSecret'>): boolean {
    return unseal(this.#key, id, storedSecret) === undefined
  }
}

function unseal(key: Buffer, id: string, stored: string): string | undefined {
  if (!stored.startsWith(PREFIX)) return undefined
  return decrypt(key, Buffer.from(stored.slice(PREFIX.length), 'base64'), id)?.toString()
}

/** The key of this state directory; removing its file makes the stored secrets unreadable. */
export const loadWebhookKey = (file: string): Buffer =>
  loadKeyFile(file, {
    name: 'key of the webhook secrets',
    ifRemoved: 'webhooks must then be deleted and created again',
  })

const isPlain = (stored: string): boolean => stored.startsWith('whsec_')

/** Encrypts what an older version, or an earlier key, left in the store. */
export async function sealStoredSecrets(
  store: Store,
  secrets: WebhookSecrets,
  log: (line: string) => void,
): Promise<void> {
  const outdated = (await listWebhooks(store)).filter((row) => secrets.isOutdated(row))
  const changes = outdated.flatMap((row) => {
    try {
      const secret = isPlain(row.storedSecret) ? row.storedSecret : secrets.open(row)
      return [{ ...row, sealed: secrets.seal(row.id, secret) }]
    } catch (error) {
      log(`${(error as SandboxError).message}; nothing is delivered to it (${(error as SandboxError).hint})`)
      return []
    }
  })
  if (changes.length > 0) await replaceWebhookSecrets(store, changes)
}
