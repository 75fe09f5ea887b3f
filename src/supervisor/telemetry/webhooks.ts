import { createHmac, randomBytes } from 'node:crypto'
import { positionOf } from '../../audit/chain.ts'
import type { StoreTrailReader } from '../../audit/store-read.ts'
import type { CreatedWebhook } from '../../model/api/webhooks.ts'
import { SandboxError } from '../../model/errors.ts'
import type { Store } from '../../store/sql.ts'
import {
  advanceWebhook,
  countWebhooks,
  hasWebhook,
  insertWebhook,
  listWebhooks,
  noteWebhookFailure,
  removeWebhook,
  type WebhookRow,
} from '../../store/webhooks.ts'
import { isOperator, type Principal } from '../access/keys.ts'
import type { Feed } from './feed.ts'
import type { WebhookSecrets } from './webhook-secrets.ts'

/** Posts one body to a checked address; resolves with the status. */
export type Post = (
  url: string,
  body: string,
  headers: Readonly<Record<string, string>>,
  /** SECURITY: only the operator's own webhooks may reach the private addresses that the operator allowed. */
  options: { readonly mayReachPrivate: boolean; readonly tenant: string },
) => Promise<number>

/** What webhook delivery is made of. */
export type WebhookParts = {
  readonly store: Store
  readonly secrets: WebhookSecrets
  readonly reader: StoreTrailReader
  readonly feed: Feed
  readonly newId: (prefix: string) => string
  readonly post: Post
  /** Whether a key exists and is not revoked. */
  readonly isInForce: (keyId: string) => Promise<boolean>
  readonly retryMs?: number
  /** Whether this server delivers a webhook; absent: always. */
  readonly isOurs?: ((id: string) => boolean) | undefined
}

const PAGE = 64
const MOST = 32
const RETRY_MS = 1000
const LONGEST_MS = 300_000
/** How many records a webhook's saved position may lag behind its searched position. */
const SAVE_EVERY = 10_000

/**
 * Delivers audit records to webhooks, signed. The position is stored with the webhook, so a crash repeats at most the
 * delivery in progress and loses nothing.
 */
export class Webhooks {
  readonly #parts: WebhookParts
  readonly #busy = new Set<string>()
  /** Webhooks with new records while they were being served. */
  readonly #again = new Set<string>()
  readonly #wait = new Map<string, number>()
  /** The position up to which the log was searched for a webhook, so that one without matches does not search it again. */
  readonly #searched = new Map<string, number>()
  readonly #stop: () => void
  #closed = false
  /** Whether there may be any webhook: most servers have none, and every record checks this. */
  #any = true
  #made = 0

  constructor(parts: WebhookParts) {
    this.#parts = parts
    this.#stop = parts.feed.onGrowth(() => this.deliver())
  }

  async create(
    principal: Principal,
    { url, events }: { readonly url: string; readonly events: readonly string[] },
  ): Promise<CreatedWebhook> {
    if (!/^https?:\/\//i.test(url))
      throw new SandboxError('invalid-input', 'a webhook requires an http(s) URL')
    const { store, secrets, reader, newId } = this.#parts
    const id = newId('wh')
    const secret = `whsec_${randomBytes(24).toString('hex')}`
    const row: WebhookRow = {
      id,
      tenant: isOperator(principal) ? '*' : principal.tenant,
      keyId: principal.keyId,
      url,
      storedSecret: secrets.seal(id, secret),
      events,
      position: await reader.position(),
      failures: 0,
      createdAt: Date.now(),
    }
    // Under a lock: another server counts only after this transaction.
    const isAdded = await store.write(
      async (tx) => {
        if ((await countWebhooks(tx, row.tenant)) >= MOST) return false
        await insertWebhook(tx, row)
        return true
      },
      [`webhooks ${row.tenant}`],
    )
    if (!isAdded) throw new SandboxError('too-many-requests', `there are already ${MOST} webhooks`)
    this.#made++
    this.#any = true
    return { id, url, events, secret }
  }

  list(principal: Principal): Promise<WebhookRow[]> {
    return listWebhooks(this.#parts.store, isOperator(principal) ? undefined : principal.tenant)
  }

  async remove(principal: Principal, id: string): Promise<void> {
    const isOwn = (await this.list(principal)).some((row) => row.id === id)
    if (!isOwn) throw new SandboxError('not-found', `no such webhook \`${id}\``)
    await this.#parts.store.write((tx) => removeWebhook(tx, id))
    this.#searched.delete(id)
    this.#wait.delete(id)
  }

  /** Starts deliveries if there are new records; cheap to call often. */
  deliver(): void {
    if (this.#closed || !this.#any) return
    const since = this.#made
    void listWebhooks(this.#parts.store)
      .then((rows) => {
        // Another server may create one.
        this.#any = rows.length > 0 || since !== this.#made || this.#parts.reader.isShared
        for (const row of rows) void this.#run(row)
      })
      .catch(() => {})
  }

  close(): void {
    this.#closed = true
    this.#stop()
  }

  async #run(row: WebhookRow): Promise<void> {
    if (this.#closed || (this.#wait.get(row.id) ?? 0) > Date.now()) return
    if (this.#parts.isOurs?.(row.id) === false) return
    if (this.#busy.has(row.id)) {
      this.#again.add(row.id)
      return
    }
    this.#busy.add(row.id)
    try {
      if (!(await this.#isWanted(row))) return
      let position = row.position
      for (;;) {
        const next = await this.#send({ ...row, position })
        if (next === undefined || this.#closed) break
        position = next
      }
    } catch {
      const failures = row.failures + 1
      const pause = Math.min(LONGEST_MS, (this.#parts.retryMs ?? RETRY_MS) * 2 ** Math.min(failures, 16))
      this.#wait.set(row.id, Date.now() + pause)
      // The store may be closed by now.
      await this.#parts.store.write((tx) => noteWebhookFailure(tx, row.id, failures)).catch(() => {})
      setTimeout(() => this.deliver(), pause + 1).unref()
    } finally {
      this.#busy.delete(row.id)
      if (this.#again.delete(row.id)) void this.#runAgain(row.id).catch(() => {})
    }
  }

  /** INVARIANT: this webhook only. If it started all of them, two that are served at the same time would start each other forever. */
  async #runAgain(id: string): Promise<void> {
    const row = (await listWebhooks(this.#parts.store)).find((one) => one.id === id)
    if (row) await this.#run(row)
  }

  /** SECURITY: the webhooks of a revoked key receive nothing more, and neither does one that was removed, here or by another node. */
  async #isWanted({ id, keyId }: WebhookRow): Promise<boolean> {
    if (keyId !== null && !(await this.#parts.isInForce(keyId))) return false
    return hasWebhook(this.#parts.store, id)
  }

  /** Sends one page; returns the new position, or undefined if there was nothing to send or nobody wants it any more. */
  async #send(row: WebhookRow): Promise<number | undefined> {
    const after = Math.max(row.position, this.#searched.get(row.id) ?? -1)
    const end = await this.#parts.reader.position()
    if (end <= after) return undefined
    const records = await this.#parts.reader.query({
      after,
      before: end + 1,
      tenant: row.tenant === '*' ? undefined : row.tenant,
      events: row.events.length > 0 ? row.events : undefined,
      limit: PAGE,
    })
    for (const record of records) {
      const position = positionOf(record)
      // Asked each time: a page may take hours if the receiver is slow.
      if (this.#closed || !(await this.#isWanted(row))) return undefined
      const body = JSON.stringify({ id: `${row.id}-${position}`, type: record.event, data: record })
      await this.#post(row, body, String(position))
      await this.#save(row.id, position, 0)
    }
    const last = records.at(-1)
    const position = last && positionOf(last)
    if (records.length < PAGE) await this.#noteSearched(row, position ?? row.position, end)
    return position
  }

  async #noteSearched({ id }: WebhookRow, position: number, end: number): Promise<void> {
    this.#searched.set(id, end)
    // Saved now and then, so that a restart does not search from far back.
    if (end - position >= SAVE_EVERY) await this.#save(id, end, 0)
  }

  async #post(row: WebhookRow, body: string, seq: string): Promise<void> {
    if (this.#parts.isOurs?.(row.id) === false)
      throw new SandboxError('wrong-state', 'another node delivers this webhook')
    const time = String(Math.floor(Date.now() / 1000))
    const status = await this.#parts.post(
      row.url,
      body,
      {
        'content-type': 'application/json',
        'webhook-id': `${row.id}-${seq}`,
        'webhook-timestamp': time,
        'webhook-signature': signatureOf(this.#parts.secrets.open(row), `${row.id}-${seq}.${time}.${body}`),
      },
      { mayReachPrivate: row.tenant === '*', tenant: row.tenant },
    )
    if (status < 200 || status > 299) throw new SandboxError('internal', `the webhook answered ${status}`)
  }

  #save(id: string, position: number, failures: number): Promise<void> {
    return this.#parts.store.write((tx) => advanceWebhook(tx, id, { position, failures }))
  }
}

/** `v1,` and the HMAC-SHA256 of `id.timestamp.body` in base64. */
const signatureOf = (secret: string, text: string): string =>
  `v1,${createHmac('sha256', secret).update(text).digest('base64')}`
