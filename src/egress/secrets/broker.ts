import { randomBytes } from 'node:crypto'
import type { Secret } from '../../host/secrets/secret.ts'
import { SandboxError } from '../../model/errors.ts'
import type { SecretGrant } from '../../policy/grants/secret-grant.ts'
import type { Target } from '../../policy/network/network.ts'
import type { Scrub } from '../http/exchange.ts'
import type { Headers } from '../http/message.ts'
import type { Resolve } from '../upstream/names.ts'
import type { Judged } from '../upstream/resolve.ts'
import { isUsable, SoughtValue } from './forms.ts'
import { Peers } from './peers.ts'
import { Search } from './scrub.ts'
import { percentEncoded } from './spellings.ts'

/** A secret in the proxy; the sandbox has only the placeholder. */
export type BrokeredSecret = {
  readonly grant: Pick<SecretGrant, 'name' | 'host' | 'port' | 'scheme'>
  readonly placeholder: string
  readonly value: Secret
  /** What responses of the host are searched for. */
  readonly sought: SoughtValue
  /** Where its host was found. */
  readonly peers: Peers
}

/** An unguessable placeholder for a secret. */
const makePlaceholder = (): string => `rfs_${randomBytes(24).toString('hex')}`

/** Binds a value to its host and creates a placeholder. A value that is not valid in a header is rejected. */
export function brokerSecret(grant: BrokeredSecret['grant'], value: Secret): BrokeredSecret {
  value.use((bytes) => assertUsable(grant.name, bytes))
  const placeholder = makePlaceholder()
  return {
    grant,
    value,
    placeholder,
    sought: new SoughtValue(value, placeholder),
    peers: new Peers(grant.host),
  }
}

function assertUsable(name: string, bytes: Buffer): void {
  if (isUsable(bytes)) return
  throw new SandboxError('invalid-config', `the value of \`${name}\` cannot be brokered`, {
    hint: `it must have at least 8 bytes and no line breaks or control characters`,
  })
}

/** A request after the broker has processed it. */
export type Prepared = {
  readonly headers: Headers
  /** Inserts the values into the finished head; absent if it contains no placeholder. */
  readonly fill?: (head: Buffer) => Buffer
  readonly scrub: Scrub
}

type Message = { readonly path: string; readonly headers: Headers }

// A compressed or partial response could contain the value in a form that is not detected.
const HIDING = /^(accept-encoding|range|if-range)$/i
const BASIC = /^basic +([A-Za-z0-9+/=]+)$/i

/** Inserts values into requests to their own host, and removes them from responses. */
export class Broker {
  readonly #secrets: readonly BrokeredSecret[]
  readonly #usable: readonly BrokeredSecret[]
  readonly #searches = new Map<string, Search>()

  /**
   * SECURITY: `secrets` are all secrets of the sandbox, also where only `usable` may be inserted: a host returns to one
   * command what another command sent to it.
   */
  constructor(secrets: readonly BrokeredSecret[], usable = secrets) {
    this.#secrets = secrets
    this.#usable = usable
  }

  /** Whether the proxy terminates TLS to this host to insert a value. */
  terminates(target: Target): boolean {
    return this.#bound(target, 'https').length > 0
  }

  /** Whether this host has a secret. */
  guards(host: string): boolean {
    return this.#secrets.some(({ grant }) => grant.host === host)
  }

  /**
   * The hosts with a secret that a connection leads to, also under another name or another port: all of its responses are
   * parsed, and responses that cannot be parsed are blocked.
   */
  async hostsAt(judged: Judged, resolve: Resolve): Promise<readonly string[]> {
    const met = await Promise.all(
      this.#secrets.map(async ({ grant, peers }) =>
        (await peers.include(judged, resolve)) ? [grant.host] : [],
      ),
    )
    return [...new Set(met.flat())].sort()
  }

  /**
   * Why a request is not sent. SECURITY: a placeholder sent to another host is an attempt to leak a value, or a mistake that
   * looks like one; both are rejected.
   */
  refusal(target: Target, scheme: 'http' | 'https', message: Message): SandboxError | undefined {
    // After a secret is withdrawn TLS is still terminated here: a request with its placeholder gets an error.
    const bound = this.#bound(target, scheme).filter(({ value }) => !value.disposed)
    const wrong = this.#carriedBy(message).find(
      (secret) => !bound.includes(secret) || !this.#usable.includes(secret),
    )
    return wrong && new SandboxError('capability-denied', this.#whyNot(wrong, target, scheme))
  }

  /** The request to send to the peer of these hosts; `undefined` if no secret is involved. */
  prepare(message: Message, hosts: readonly string[]): Prepared | undefined {
    if (hosts.length === 0) return undefined
    const carried = this.#carriedBy(message)
    const headers = message.headers.filter(([name]) => !HIDING.test(name))
    const scrub = this.#searchFor(hosts)
    const asked: Headers = [...headers, ['accept-encoding', 'identity']]
    return carried.length === 0
      ? { headers: asked, scrub }
      : { headers: asked, scrub, fill: (head) => fill(head, carried) }
  }

  #carriedBy(message: Message): readonly BrokeredSecret[] {
    return this.#secrets.filter(({ placeholder }) => carries(message, placeholder))
  }

  #searchFor(hosts: readonly string[]): Search {
    const key = hosts.join(' ')
    const known = this.#searches.get(key)
    if (known !== undefined) return known
    const search = new Search(
      this.#secrets.filter(({ grant }) => hosts.includes(grant.host)).map(({ sought }) => sought),
    )
    this.#searches.set(key, search)
    return search
  }

  #whyNot(secret: BrokeredSecret, target: Target, scheme: 'http' | 'https'): string {
    const { grant, value } = secret
    if (!this.#usable.includes(secret)) return `the secret \`${grant.name}\` was not given to this command`
    if (value.disposed) return `the secret \`${grant.name}\` was taken back`
    return `the placeholder of \`${grant.name}\` is sent ${otherHost(grant, target, scheme)}`
  }

  #bound(target: Target, scheme: 'http' | 'https'): readonly BrokeredSecret[] {
    return this.#secrets.filter(
      ({ grant }) => grant.host === target.host && grant.port === target.port && grant.scheme === scheme,
    )
  }
}

function otherHost(grant: BrokeredSecret['grant'], target: Target, scheme: 'http' | 'https'): string {
  if (grant.host !== target.host) return `to \`${target.host}\`, which is not its host`
  return scheme === 'http' && grant.scheme === 'https'
    ? 'over plain http'
    : `to port ${target.port}, which is not its port`
}

const basicOf = (value: string): string => {
  const [, packed] = BASIC.exec(value) ?? []
  return packed === undefined ? '' : Buffer.from(packed, 'base64').toString('latin1')
}

const carries = ({ path, headers }: Message, placeholder: string): boolean =>
  path.includes(placeholder) ||
  headers.some(
    ([name, value]) =>
      value.includes(placeholder) || name.includes(placeholder) || basicOf(value).includes(placeholder),
  )

/** The head with every placeholder in the query and in header values replaced. */
function fill(head: Buffer, secrets: readonly BrokeredSecret[]): Buffer {
  const lines = head.toString('latin1').split('\r\n')
  const parts = lines.map((line, index) =>
    index === 0 ? fillTarget(line, secrets) : fillField(line, secrets),
  )
  const out = Buffer.concat(
    parts.flatMap((part, index) => (index === 0 ? [part] : [Buffer.from('\r\n'), part])),
  )
  for (const part of parts) part.fill(0)
  return out
}

function fillTarget(line: string, secrets: readonly BrokeredSecret[]): Buffer {
  const query = line.indexOf('?')
  if (query < 0) return Buffer.from(line, 'latin1')
  const asQuery = (bytes: Buffer): Buffer => Buffer.from(percentEncoded(bytes))
  return Buffer.concat([
    Buffer.from(line.slice(0, query), 'latin1'),
    replaced(line.slice(query), secrets, asQuery),
  ])
}

function fillField(line: string, secrets: readonly BrokeredSecret[]): Buffer {
  const colon = line.indexOf(': ')
  if (colon < 0) return Buffer.from(line, 'latin1')
  const [name, value] = [line.slice(0, colon + 2), line.slice(colon + 2)]
  const basic = basicOf(value)
  if (!secrets.some(({ placeholder }) => basic.includes(placeholder)))
    return Buffer.concat([Buffer.from(name, 'latin1'), replaced(value, secrets, (bytes) => bytes)])
  const packed = replaced(basic, secrets, (bytes) => bytes)
  const out = Buffer.from(`${name}Basic ${packed.toString('base64')}`, 'latin1')
  packed.fill(0)
  return out
}

function replaced(
  text: string,
  secrets: readonly BrokeredSecret[],
  encode: (bytes: Buffer) => Buffer,
): Buffer {
  let parts: readonly (string | BrokeredSecret)[] = [text]
  for (const secret of secrets)
    parts = parts.flatMap((part) =>
      typeof part !== 'string'
        ? [part]
        : part.split(secret.placeholder).flatMap((piece, index) => (index === 0 ? [piece] : [secret, piece])),
    )
  return Buffer.concat(
    parts.map((part) =>
      typeof part === 'string' ? Buffer.from(part, 'latin1') : encodedValue(part, encode),
    ),
  )
}

// Checked at each use, because a value can be replaced while the sandbox runs.
function encodedValue({ grant, value, sought }: BrokeredSecret, encode: (bytes: Buffer) => Buffer): Buffer {
  sought.refresh()
  return value.use((bytes) => {
    assertUsable(grant.name, bytes)
    return encode(bytes)
  })
}
