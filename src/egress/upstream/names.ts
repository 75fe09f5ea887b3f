import { createSocket } from 'node:dgram'
import { promises as dns } from 'node:dns'
import { isIP } from 'node:net'
import { Admission, type AdmissionOwner } from '../../model/admission.ts'
import { SandboxError } from '../../model/errors.ts'
import { type CancelSignal, orCancelled } from '../cancel.ts'
import { candidatesOf, NameFiles, type NamePaths, type SearchRules } from './name-files.ts'

/** Resolves all addresses of a name. A failure may throw; it blocks like an empty result. The answer is of no use after `until`. */
export type Resolve = (host: string, until?: CancelSignal) => Promise<readonly string[]> | readonly string[]

/** Where names come from. */
export type NameSources = {
  readonly paths: NamePaths
  /** The name servers; absent: those of the system. */
  readonly servers?: readonly string[]
  /** Whether name servers are asked by this process itself; otherwise the C library resolves all names. */
  readonly asksItself: boolean
}

const TIMEOUT_MS = 2000
const TRIES = 2
/** SECURITY: a name server can send thousands of addresses; these many of each family are used. */
const MAX_ADDRESSES = 64
/** Failures after which the C library asks for the next candidate. */
const NEXT = ['ENOTFOUND', 'ENODATA', 'ESERVFAIL']

const WAITING = 1024

/**
 * The addresses of names for sandboxes. SECURITY: a tenant chooses names whose name servers never answer, and `dns.lookup`
 * would hold a thread of the process for each. So name servers are asked without threads, a question ends with the
 * connection that needs it, and tenants share the number of questions. Where only the C library knows how, it uses one
 * thread for all of them.
 */
export class Names {
  readonly #files: NameFiles
  readonly #servers: readonly string[] | undefined
  readonly #asksItself: boolean
  readonly #questions = new Admission('lookups of names', { running: 64, waiting: WAITING })
  readonly #calls = new Admission('lookups of names', {
    // libuv lets lookups use half of its threads: two, unless the operator gives it more.
    running: 1,
    waiting: WAITING,
    strict: true,
  })

  constructor({ paths, servers, asksItself }: NameSources) {
    this.#files = new NameFiles(paths)
    this.#servers = servers
    this.#asksItself = asksItself
  }

  /** The resolver for the connections of one owner. */
  for(owner?: AdmissionOwner): Resolve {
    return async (host, until = NEVER) => {
      if (isIP(host) !== 0) return [host]
      const rules = this.#asksItself ? this.#files.search : undefined
      if (rules === undefined) return this.#admitted(this.#calls, owner, until, () => callLibrary(host))
      const listed = this.#files.addressesOf(host)
      if (listed.length > 0) return inOrder(listed)
      return this.#admitted(this.#questions, owner, until, () => this.#ask(host, rules, until))
    }
  }

  /** INVARIANT: the slot is held until the work has ended, even if nobody waits for it any more. */
  #admitted<T>(
    admission: Admission,
    owner: AdmissionOwner | undefined,
    until: CancelSignal,
    work: () => Promise<T>,
  ): Promise<T> {
    const begin = async (): Promise<T> => {
      if (until.reason !== undefined) throw until.reason
      return work()
    }
    const done = admission.run(begin, owner).catch((error) => {
      if (!(error instanceof SandboxError) || error.code !== 'too-many-requests') throw error
      throw new SandboxError('resource-exhausted', 'too many names are looked up at once')
    })
    return orCancelled(done, until)
  }

  async #ask(host: string, rules: SearchRules, until: CancelSignal): Promise<readonly string[]> {
    const resolver = new dns.Resolver({ timeout: TIMEOUT_MS, tries: TRIES })
    if (this.#servers) resolver.setServers(this.#servers)
    const leave = until.listen(() => resolver.cancel())
    try {
      for (const name of candidatesOf(host, rules)) {
        const found = await bothFamilies(resolver, name)
        if (found.length > 0 || until.reason !== undefined) return inOrder(found)
      }
      return []
    } finally {
      leave()
    }
  }
}

const NEVER: CancelSignal = { reason: undefined, listen: () => () => undefined }

/** Throws if the name servers fail in a way in which another name would fail too. */
async function bothFamilies(resolver: dns.Resolver, name: string): Promise<readonly string[]> {
  const answers = await Promise.allSettled([resolver.resolve6(name), resolver.resolve4(name)])
  const found = answers.flatMap((one) =>
    one.status === 'fulfilled' ? one.value.slice(0, MAX_ADDRESSES) : [],
  )
  const failure = answers.find((one) => one.status === 'rejected' && !NEXT.includes(one.reason.code))
  if (found.length === 0 && failure?.status === 'rejected') throw failure.reason
  return found
}

/** As getaddrinfo: IPv6 first where it can be used. Within a family the order is the name server's. */
async function inOrder(addresses: readonly string[]): Promise<readonly string[]> {
  const six = addresses.filter((address) => isIP(address) === 6)
  const four = addresses.filter((address) => isIP(address) === 4)
  const [first] = six
  if (first === undefined || four.length === 0) return addresses
  return (await isUsable(first)) ? [...six, ...four] : [...four, ...six]
}

const isGlobal = (address: string): boolean => /^[23]/.test(address)

/** Whether there is a route, from an address of the same kind. Connecting a datagram socket sends nothing. */
function isUsable(address: string): Promise<boolean> {
  return new Promise((resolve) => {
    const probe = createSocket('udp6')
    const done = (isUsable: boolean): void => {
      probe.close()
      resolve(isUsable)
    }
    probe.once('error', () => done(false))
    probe.connect(53, address, (error?: Error) =>
      done(!error && isGlobal(probe.address().address) === isGlobal(address)),
    )
  })
}

async function callLibrary(host: string): Promise<readonly string[]> {
  const found = await dns.lookup(host, { all: true, verbatim: true })
  return found.map(({ address }) => address)
}

/** This host's names. PLATFORM: other systems than Linux resolve names in services of their own. */
const hostNames = new Names({
  paths: { hosts: '/etc/hosts', resolvConf: '/etc/resolv.conf', nsswitch: '/etc/nsswitch.conf' },
  asksItself: process.platform === 'linux',
})

/** The host's own resolver, for the connections of one owner; all others share one part of its questions. */
export const resolveFor = (owner?: AdmissionOwner): Resolve => hostNames.for(owner)

/** The host's own resolver: every address, in the resolver's order. */
export const hostResolve: Resolve = resolveFor()
