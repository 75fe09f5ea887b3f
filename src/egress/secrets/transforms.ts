import { SandboxError } from '../../model/errors.ts'
import { type HostRule, hostRuleFor, parseHostRules } from '../../policy/network/hosts.ts'
import type { Target } from '../../policy/network/network.ts'
import type { Headers } from '../http/message.ts'

/** Headers that the proxy sets in requests to a host, in place of those that the sandbox sent. */
export type HeaderTransform = { readonly host: string; readonly headers: Readonly<Record<string, string>> }

// Set by the proxy: they determine the destination and the end of the body.
const OURS =
  /^(host|connection|keep-alive|proxy-.*|content-length|transfer-encoding|te|trailer|upgrade|expect)$/i
const TOKEN = /^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}$/
const VALUE = /^[\t\x20-\x7e]{0,8192}$/

type Parsed = { readonly rules: readonly HostRule[]; readonly headers: Headers }

/** The transforms of one sandbox. */
export class Transforms {
  readonly #parsed: readonly Parsed[]

  constructor(transforms: readonly HeaderTransform[]) {
    this.#parsed = transforms.map(({ host, headers }) => ({
      rules: parseHostRules([host]),
      headers: Object.entries(headers).map(([name, value]) => checked(name, value)),
    }))
  }

  get size(): number {
    return this.#parsed.length
  }

  /** Whether requests to this host are changed, so that its TLS must end in the proxy. */
  applies(target: Target): boolean {
    return this.#of(target).length > 0
  }

  /** The headers of a request to this host; a later transform wins. */
  apply(target: Target, headers: Headers): Headers {
    const own = new Map(
      this.#of(target).flatMap((one) => one.headers.map((pair) => [pair[0].toLowerCase(), pair])),
    )
    return own.size === 0
      ? headers
      : [...headers.filter(([name]) => !own.has(name.toLowerCase())), ...own.values()]
  }

  #of({ host, port, literal }: Target): readonly Parsed[] {
    return this.#parsed.filter(({ rules }) => hostRuleFor(rules, host, port, literal) !== undefined)
  }
}

function checked(name: string, value: string): readonly [string, string] {
  if (TOKEN.test(name) && VALUE.test(value) && !OURS.test(name)) return [name, value]
  throw new SandboxError('invalid-input', `the header \`${name.slice(0, 64)}\` cannot be set for requests`, {
    hint: 'use a plain name and a value without line breaks; headers of the connection are set by the proxy',
  })
}
