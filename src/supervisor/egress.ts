import { randomUUID } from 'node:crypto'
import type { Duplex } from 'node:stream'
import type { Connection } from '../egress/connection.ts'
import type { UnlistedTarget } from '../egress/core.ts'
import { EgressProxy } from '../egress/proxy.ts'
import { type BrokeredSecret, brokerSecret } from '../egress/secrets/broker.ts'
import type { HeaderTransform } from '../egress/secrets/transforms.ts'
import { parseUpstream, type SocksUpstream } from '../egress/upstream/socks-upstream.ts'
import { Secret } from '../host/secrets/secret.ts'
import type { Vault } from '../host/secrets/vault.ts'
import type { AdmissionOwner } from '../model/admission.ts'
import type { Config, SecretConfig } from '../model/config.ts'
import { SandboxError } from '../model/errors.ts'
import type { Event, EventSink, Pace } from '../model/event.ts'
import type { Plan } from '../model/plan.ts'
import type { Spec } from '../model/spec.ts'
import { parseSecretGrant, type SecretGrant } from '../policy/grants/secret-grant.ts'
import { assertDeclaredHost } from '../policy/grants/secret-lending.ts'
import { type HostVerdict, hostVerdicts } from '../policy/network/host-verdicts.ts'
import { certificateBundle } from '../policy/network/proxy-environment.ts'
import type { EgressFacts } from '../policy/plan.ts'
import { RefusalRecorder } from './refusal-recorder.ts'

/** The network access of a sandbox in network mode `fetch`. */
export interface Egress {
  /** Serves one connection. `secrets`: it comes from an isolated command, which may use only these. */
  handle(stream: Duplex, secrets?: readonly string[]): void
  /** Replaces the allowed hosts; takes effect at once, also for open connections. */
  setAllowHosts(hosts: readonly string[]): void
  /** Adds a host that a person approved; open connections stay. */
  allowAlso(entry: string): void
  /** Decides about hosts that are not on the list; absent: they are refused. */
  onUnlisted: ((target: UnlistedTarget) => Promise<void>) | undefined
  /** Replaces the headers that are set in requests. */
  setHeaders(spec: Spec): void
  /** What the policy decides for each of these hosts, if they were the list. */
  verdicts(hosts: readonly string[]): readonly HostVerdict[]
  /** The latest connections, allowed and refused. */
  readonly connections: readonly Connection[]
  close(): Promise<void> | void
}

/** Created before the plan, because the plan names the addresses that the sandbox connects to. */
export type PreparedEgress = {
  readonly facts: EgressFacts
  /** Starts the proxy with the hosts of the plan. */
  start(plan: Plan, sandboxId: string): Egress
  /** Releases everything if no sandbox is created. */
  close(): Promise<void> | void
}

/** What a sandbox's proxy is made of. */
export type EgressParts = {
  readonly trail: EventSink
  readonly allowPrivate: readonly string[]
  /** Whose code the sandbox runs; absent: the operator's. */
  readonly tenant?: string | undefined
  /** The proxies that a sandbox may name as its way out. */
  readonly upstreams: readonly UpstreamConfig[]
  /** The secrets that the operator declared, with their values. */
  readonly declared: readonly SecretConfig[]
  readonly vault: Vault
  /** Where the values of other secrets come from. */
  readonly env: Readonly<Record<string, string>>
  readonly systemCertificates: () => string
  readonly nodePreload: () => string | undefined
  /** Whether sandboxes of this server may act now; absent: always. */
  readonly mayAct?: (() => boolean) | undefined
}

/** One `[[network.upstream]]`. */
type UpstreamConfig = NonNullable<NonNullable<Config['network']>['upstream']>[number]

/** Creates the egress factory for the gate: one proxy per sandbox, each connection recorded. */
export const egressWith =
  (parts: EgressParts): ((spec: Spec) => PreparedEgress) =>
  (spec) =>
    new SandboxEgress(parts, spec)

/** How E2B's clients write the name of a secret or of a token in the value of a header. */
const SECRET_NAME = /\$\{e2b\.(?:secrets|identity\.tokens)\.([^}]*)\}/g

/** Older connections are only in the audit log. */
const MAX_CONNECTIONS = 1000

/** The proxy of isolated commands with these secrets. */
type RestrictedProxy = { readonly proxy: EgressProxy; readonly usable: readonly BrokeredSecret[] }

class SandboxEgress implements PreparedEgress, Egress {
  readonly facts: EgressFacts
  readonly #parts: EgressParts
  /** Each sandbox has its own part of what its tenant may use. */
  readonly #owner: AdmissionOwner
  readonly #proxy: EgressProxy
  /** The proxies of isolated commands, one for each set of secrets. */
  readonly #restricted = new Map<string, RestrictedProxy>()
  #spec: Spec
  #hosts: readonly string[] = []
  readonly #secrets: readonly BrokeredSecret[]
  /** Copies that are wiped with the sandbox; secrets lent by the vault stay there. */
  readonly #own: Secret[] = []
  readonly connections: Connection[] = []
  readonly #ledger = new ConnectionRecorder()
  readonly #refusals = new RefusalRecorder((refusal, count, pace) =>
    this.#parts.trail.append(
      {
        event: 'SandboxViolation',
        ...this.#names,
        violation_type: 'SsrfBlocked',
        guarantee: 'net.fetch',
        ...refusal,
        ...(count > 1 ? { count } : {}),
      },
      pace,
    ),
  )
  #names: Pick<Event, 'sandbox_id' | 'agent_id'> = {}
  #asks = false
  onUnlisted: Egress['onUnlisted']

  constructor(parts: EgressParts, spec: Spec) {
    this.#parts = parts
    this.#owner = { tenant: parts.tenant ?? '', keyId: randomUUID() }
    this.#secrets = (spec.secrets ?? []).map((text) => this.#brokered(text))
    this.#spec = spec
    this.#proxy = this.#proxyWith(this.#secrets)
    const own = this.#proxy.caCertificate
    this.facts = {
      placeholders: Object.fromEntries(
        this.#secrets.map(({ grant, placeholder }) => [grant.name, placeholder]),
      ),
      certificates: own && certificateBundle(parts.systemCertificates(), own),
      nodePreload: parts.nodePreload(),
    }
  }

  #proxyWith(usable: readonly BrokeredSecret[], authority?: EgressProxy['authority']): EgressProxy {
    const { allowPrivate, mayAct } = this.#parts
    return new EgressProxy({
      owner: this.#owner,
      allowHosts: this.#hosts,
      allowPrivate,
      secrets: this.#secrets,
      usable,
      authority,
      unlisted: (target) => this.#unlisted(target),
      transforms: this.#transforms(this.#spec, usable),
      via: this.#upstream(this.#spec.network?.upstream),
      admit: (connection) => this.#admit(connection),
      mayPass: mayAct,
      onConnection: (connection) => this.#note(connection),
    })
  }

  /** SECURITY: no request of a command without a secret can use it, and what its host returns is searched for it all the same. */
  #proxyFor(names: readonly string[]): EgressProxy {
    const key = [...new Set(names)].sort().join(' ')
    const found = this.#restricted.get(key)
    if (found) return found.proxy
    const granted = this.#secrets.filter(({ grant }) => names.includes(grant.name))
    const proxy = this.#proxyWith(granted, this.#proxy.authority)
    this.#restricted.set(key, { proxy, usable: granted })
    return proxy
  }

  get #proxies(): readonly EgressProxy[] {
    return [this.#proxy, ...[...this.#restricted.values()].map(({ proxy }) => proxy)]
  }

  /** SECURITY: only what the operator named; the credentials are the operator's too. */
  #upstream(address: string | undefined): SocksUpstream | undefined {
    if (address === undefined) return undefined
    const found = this.#parts.upstreams.find((one) => one.address === address)
    const place = found && parseUpstream(found.address)
    if (!found || !place)
      throw new SandboxError('forbidden', `the proxy \`${address.slice(0, 128)}\` may not be used`, {
        hint: `the operator can permit it: \`address = "${address.slice(0, 128)}"\` in [[network.upstream]]`,
      })
    const { username, password_env: variable } = found
    const password = variable === undefined ? undefined : this.#parts.env[variable]
    if (variable !== undefined && password === undefined)
      throw new SandboxError('invalid-input', `the variable \`${variable}\` of the server is not set`)
    return { ...place, username, password }
  }

  start(plan: Plan, sandboxId: string): Egress {
    this.#names = {
      sandbox_id: sandboxId,
      ...(plan.agentId === undefined ? {} : { agent_id: plan.agentId }),
    }
    this.#asks = plan.network.unlisted === 'ask'
    this.setAllowHosts(plan.network.allowHosts)
    return this
  }

  handle(stream: Duplex, secrets?: readonly string[]): void {
    void (secrets ? this.#proxyFor(secrets) : this.#proxy).handle(stream)
  }

  setAllowHosts(hosts: readonly string[]): void {
    this.#hosts = hosts
    for (const proxy of this.#proxies) proxy.setAllowHosts(hosts)
  }

  allowAlso(entry: string): void {
    this.#hosts = [...this.#hosts, entry]
    for (const proxy of this.#proxies) proxy.allowAlso(entry)
  }

  /** SECURITY: without somebody who answers, a host that is not on the list is refused. */
  async #unlisted(target: UnlistedTarget): Promise<void> {
    if (this.#asks && this.onUnlisted) return this.onUnlisted(target)
    const nobody = this.#asks ? ', and nobody can be asked' : ''
    throw new SandboxError('ssrf-blocked', `\`${target.host}\` is not an allowed host${nobody}`)
  }

  verdicts(hosts: readonly string[]): readonly HostVerdict[] {
    return hostVerdicts(hosts, this.#parts.allowPrivate)
  }

  setHeaders(spec: Spec): void {
    const headers = spec.network?.headers ?? []
    const changed = { ...this.#spec, network: { ...this.#spec.network, headers } }
    this.#proxy.setTransforms(this.#transforms(changed, this.#secrets))
    this.#spec = changed
    for (const { proxy, usable } of this.#restricted.values())
      proxy.setTransforms(this.#transforms(changed, usable))
  }

  /** The headers of a spec, in which the name of a secret is replaced by its placeholder, and that later by its value. */
  #transforms({ network }: Spec, granted: readonly BrokeredSecret[]): readonly HeaderTransform[] {
    const filled = (value: string, host: string): string =>
      value.replace(SECRET_NAME, (_, name: string) => {
        const found = this.#secrets.find(({ grant }) => grant.name === name && grant.host === host)
        if (found) return found.placeholder
        throw new SandboxError(
          'invalid-input',
          `there is no secret \`${name.slice(0, 64)}\` for \`${host}\``,
          {
            hint: 'create the sandbox with it; the operator declares it with [[secret]] for this host and tenant',
          },
        )
      })
    // SECURITY: a header with a secret is a use of it.
    const isGranted = (value: string): boolean =>
      this.#secrets.every((secret) => granted.includes(secret) || !value.includes(secret.placeholder))
    return (network?.headers ?? []).map(({ host, headers }) => ({
      host,
      headers: Object.fromEntries(
        Object.entries(headers)
          .map(([name, value]) => [name, filled(value, host)] as const)
          .filter(([, value]) => isGranted(value)),
      ),
    }))
  }

  async close(): Promise<void> {
    await Promise.all(this.#proxies.map((proxy) => proxy.close()))
    for (const { sought } of this.#secrets) sought.wipe()
    for (const value of this.#own) value.dispose()
    await this.#refusals.flush()
  }

  #brokered(text: string): BrokeredSecret {
    const grant = parseSecretGrant(text)
    const { declared, vault, env } = this.#parts
    const found = declared.find(({ name }) => name === grant.variable)
    assertDeclaredHost(found, grant)
    const lent = found && vault.lend(found.name, declared)
    if (lent) return brokerSecret(grant, lent)
    const own = new Secret(environmentValue(grant, env))
    this.#own.push(own)
    return brokerSecret(grant, own)
  }

  /** Records a connection before it is made; if it cannot be recorded, it is not made. */
  #admit({ host, port, address, protocol }: Connection): Promise<void> | undefined {
    const where = { host, port, protocol, ...(address === undefined ? {} : { address }) }
    return this.#ledger.enter(`${protocol} ${host}:${port} ${address}`, (pace) =>
      this.#parts.trail.append({ event: 'Connection', ...this.#names, verdict: 'allow', ...where }, pace),
    )
  }

  #note(connection: Connection): Promise<void> | undefined {
    const { verdict, host, port, protocol, reason } = connection
    this.connections.push({ ...connection, at: Date.now() })
    if (this.connections.length > MAX_CONNECTIONS) this.connections.shift()
    if (verdict === 'allow') return undefined
    const details = `connect to ${host}:${port} (${protocol}): ${reason}`
    return this.#refusals.note({ host, port, details })
  }
}

/** Limits per sandbox: remembered destinations, and records that may be on their way to the disk. */
const MAX_DESTINATIONS = 1024
const MAX_UNWRITTEN = 64

/**
 * Decides when a connection may be made. The first connection to a destination waits until its record is synced to disk.
 * Later connections to it do not wait for their record: the destination is known by then, and one sync each would cost
 * more than the connection. Once a record is lost, every connection waits for its own record again, so that only the
 * connections made until then can be missing.
 */
export class ConnectionRecorder {
  readonly #destinations = new Set<string>()
  #unwritten = 0
  #broken = false

  enter(destination: string, write: (pace: Pace) => Promise<void>): Promise<void> | undefined {
    const ahead = this.#destinations.has(destination) && this.#unwritten < MAX_UNWRITTEN && !this.#broken
    const written = this.#follow(destination, write(ahead ? 'soon' : 'now'))
    return ahead ? undefined : written
  }

  #follow(destination: string, writing: Promise<void>): Promise<void> {
    this.#unwritten++
    const written = writing.then(
      () => {
        this.#broken = false
        if (this.#destinations.size >= MAX_DESTINATIONS) this.#destinations.clear()
        this.#destinations.add(destination)
      },
      (error) => {
        this.#broken = true
        throw error
      },
    )
    const settled = (): void => void this.#unwritten--
    written.then(settled, settled)
    return written
  }
}

function environmentValue({ name, variable }: SecretGrant, env: Readonly<Record<string, string>>): string {
  const value = env[variable]
  if (value) return value
  throw new SandboxError('invalid-input', `the secret \`${name}\` has no value: \`${variable}\` is not set`, {
    hint: `set ${variable} in the environment that starts ringfence, or declare it with [[secret]]`,
  })
}
