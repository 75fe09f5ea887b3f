import { readFileSync, statSync } from 'node:fs'
import { isIP } from 'node:net'
import { hostname } from 'node:os'

/** The files that say how this host resolves names. */
export type NamePaths = { readonly hosts: string; readonly resolvConf: string; readonly nsswitch: string }

/** Which names are asked for one that a program wrote. */
export type SearchRules = {
  readonly domains: readonly string[]
  /** A name with at least so many dots is asked as it is first. */
  readonly ndots: number
}

/** The resolver's files of this host. Each is read again when it has changed. */
export class NameFiles {
  readonly #hosts: () => ReadonlyMap<string, readonly string[]>
  readonly #rules: () => SearchRules | undefined
  readonly #usesDns: () => boolean

  constructor({ hosts, resolvConf, nsswitch }: NamePaths) {
    this.#hosts = reread(hosts, (text) => parseHosts(text ?? ''))
    this.#rules = reread(resolvConf, (text) => parseResolvConf(text ?? '', hostname()))
    this.#usesDns = reread(nsswitch, (text) => asksDns(text ?? ''))
  }

  /** The addresses that the hosts file gives a name, in its order. */
  addressesOf(name: string): readonly string[] {
    return this.#hosts().get(name.toLowerCase()) ?? []
  }

  /** How name servers are asked; undefined if this host does not ask any. */
  get search(): SearchRules | undefined {
    return this.#usesDns() ? this.#rules() : undefined
  }
}

// The calls are synchronous: asynchronous ones use the threads that must not be needed for a name.
function reread<T>(path: string, parse: (text: string | undefined) => T): () => T {
  let stamp: string | undefined
  let value: T
  return () => {
    const { ino, size, mtimeMs, ctimeMs } = statSync(path, { throwIfNoEntry: false }) ?? {}
    const now = `${ino} ${size} ${mtimeMs} ${ctimeMs}`
    if (now !== stamp) value = parse(ino === undefined ? undefined : readFileSync(path, 'utf8'))
    stamp = now
    return value
  }
}

const linesOf = (text: string, comment: RegExp): string[][] =>
  text.split('\n').map((line) => line.replace(comment, '').trim().split(/\s+/))

/** Every line that names a host counts. */
export function parseHosts(text: string): ReadonlyMap<string, readonly string[]> {
  const all = new Map<string, string[]>()
  for (const [address = '', ...names] of linesOf(text, /#.*/)) {
    if (isIP(address) === 0 || address.includes('%')) continue
    for (const name of new Set(names.map((one) => one.toLowerCase()))) {
      const known = all.get(name) ?? []
      all.set(name, known)
      if (!known.includes(address)) known.push(address)
    }
  }
  return all
}

const MAX_NDOTS = 15

/** Undefined if no name server is given. `machine`: the name of this machine, whose domain is searched by default. */
export function parseResolvConf(text: string, machine: string): SearchRules | undefined {
  let domains = [/\.(.+)$/.exec(machine)?.[1]].filter((one) => one !== undefined)
  let ndots = 1
  let servers = 0
  for (const [keyword, ...values] of linesOf(text, /[#;].*/)) {
    if (keyword === 'nameserver' && values[0]) servers++
    else if (keyword === 'search') domains = values
    else if (keyword === 'domain') domains = values.slice(0, 1)
    else if (keyword === 'options')
      for (const value of values) ndots = Number(/^ndots:(\d+)$/.exec(value)?.[1] ?? ndots)
  }
  if (servers === 0) return undefined
  return { domains: domains.map((one) => one.replace(/\.$/, '')), ndots: Math.min(ndots, MAX_NDOTS) }
}

/** Without the line, or without the file, the C library asks name servers too. */
export function asksDns(text: string): boolean {
  const line = linesOf(text, /#.*/).find(([keyword]) => keyword === 'hosts:')
  return line === undefined || line.includes('dns')
}

/** The names to ask for, in order. */
export function candidatesOf(name: string, { domains, ndots }: SearchRules): readonly string[] {
  if (name.endsWith('.')) return [name.slice(0, -1)]
  const searched = domains.map((domain) => (domain === '' ? name : `${name}.${domain}`))
  const dots = name.split('.').length - 1
  return [...new Set(dots >= ndots ? [name, ...searched] : [...searched, name])]
}
