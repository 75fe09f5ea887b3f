import type { TaggedValue } from '../component/types.ts'
import type { GuestHost } from '../guest-host.ts'
import type { Functions, InputStream, OutputStream, ResourceToken, Wasi2Resources } from './wasi2-types.ts'

type Fields = { list: (readonly [string, Uint8Array])[] }
type Body = { readonly parts: Uint8Array[]; size: number; state: 'new' | 'open' | 'done' }
type Request = {
  method: TaggedValue
  path: TaggedValue
  scheme: TaggedValue
  authority: TaggedValue
  readonly headers: ResourceToken
  body: ResourceToken | undefined
}
type Response = {
  readonly status: number
  readonly headers: Fields['list']
  readonly body: Uint8Array
  taken: boolean
}
type Future = { readonly request: ResourceToken; taken: boolean }
type Reply =
  | {
      readonly ok: {
        readonly status: number
        readonly headers: Record<string, string>
        readonly body: string
      }
    }
  | { readonly error: string; readonly code: string }

/**
 * `wasi:http` for components: requests to granted hosts. The host checks the grant and the address, as for every other
 * request of a skill; redirects are returned to the component.
 *
 * The class text is part of the worker's source, so it may use only its arguments and JavaScript globals.
 */
export class Wasi2Http {
  readonly #host: GuestHost
  readonly #resources: Wasi2Resources

  constructor(host: GuestHost, resources: Wasi2Resources) {
    this.#host = host
    this.#resources = resources
  }

  get functions(): Functions {
    return {
      'wasi:http/outgoing-handler': {
        handle: (request: ResourceToken) => {
          this.#resources.get('outgoing-request', request)
          const future: Future = { request, taken: false }
          return this.#ok(this.#resources.make('future-incoming-response', future))
        },
      },
      'wasi:http/types': {
        ...this.#fieldCalls(),
        ...this.#requestCalls(),
        ...this.#optionCalls(),
        ...this.#bodyCalls(),
        ...this.#responseCalls(),
        'http-error-code': () => this.#none,
      },
    }
  }

  readonly #none: TaggedValue = { tag: 'none' }

  #some(value: unknown): TaggedValue {
    return { tag: 'some', value }
  }

  #ok(value?: unknown): TaggedValue {
    return { tag: 'ok', value }
  }

  readonly #failed: TaggedValue = { tag: 'error' }

  // Headers

  #fields(list: Fields['list']): ResourceToken {
    const fields = this.#resources.make('fields', { list })
    this.#resources.keep(fields, this.#fieldBytes(list))
    return fields
  }

  #fieldBytes(list: Fields['list']): number {
    this.#host.charge(list.length)
    return list.reduce((sum, [key, value]) => sum + key.length + value.length, 0)
  }

  #fieldCalls(): Functions[string] {
    const of = (self: unknown): Fields => this.#resources.get('fields', self)
    const is =
      (name: string) =>
      ([other]: readonly [string, unknown]) =>
        other === name.toLowerCase()
    /** SECURITY: each search costs the length of the list. */
    const found = (self: unknown, name: string): Fields['list'] => {
      const { list } = of(self)
      this.#host.charge(list.length)
      return isName(name) ? list.filter(is(name)) : []
    }
    const isName = (name: unknown): boolean =>
      typeof name === 'string' && /^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}$/.test(name)
    const pair = (name: string, value: Uint8Array) => {
      if (!(value instanceof Uint8Array)) throw new TypeError('the value of a header is not bytes')
      return [name.toLowerCase(), value] as const
    }
    const change = (
      self: ResourceToken,
      names: readonly string[],
      list: (fields: Fields) => Fields['list'],
    ): TaggedValue => {
      const fields = of(self)
      if (!names.every(isName)) return { tag: 'error', value: { tag: 'invalid-syntax' } }
      const changed = list(fields)
      const size = this.#fieldBytes(changed)
      if (size > 65_536) return { tag: 'error', value: { tag: 'forbidden' } }
      this.#resources.keep(self, size)
      fields.list = changed
      return this.#ok()
    }
    return {
      '[constructor]fields': () => this.#fields([]),
      '[static]fields.from-list': (list: readonly (readonly [string, Uint8Array])[]) => {
        const fields = this.#fields([])
        const all = () => list.map(({ 0: name, 1: value }) => pair(name, value))
        const done = change(
          fields,
          list.map(({ 0: name }) => name),
          all,
        )
        return done.tag === 'error' ? done : this.#ok(fields)
      },
      '[method]fields.get': (self: unknown, name: string) => found(self, name).map(([, value]) => value),
      '[method]fields.has': (self: unknown, name: string) => found(self, name).length > 0,
      '[method]fields.set': (self: ResourceToken, name: string, values: readonly Uint8Array[]) =>
        change(self, [name], ({ list }) => [
          ...list.filter((entry) => !is(name)(entry)),
          ...values.map((value) => pair(name, value)),
        ]),
      '[method]fields.delete': (self: ResourceToken, name: string) =>
        change(self, [name], ({ list }) => list.filter((entry) => !is(name)(entry))),
      '[method]fields.append': (self: ResourceToken, name: string, value: Uint8Array) =>
        change(self, [name], ({ list }) => [...list, pair(name, value)]),
      '[method]fields.entries': (self: unknown) => of(self).list,
      '[method]fields.clone': (self: unknown) => this.#fields([...of(self).list]),
    }
  }

  // Requests

  #requestCalls(): Functions[string] {
    const of = (self: unknown): Request => this.#resources.get('outgoing-request', self)
    const part = (name: 'method' | 'path' | 'scheme' | 'authority') => ({
      get: (self: unknown) => of(self)[name],
      set: (self: unknown, value: TaggedValue): TaggedValue => {
        of(self)[name] = value
        return this.#ok()
      },
    })
    const [method, path, scheme, authority] = [
      part('method'),
      part('path'),
      part('scheme'),
      part('authority'),
    ]
    return {
      '[constructor]outgoing-request': (headers: ResourceToken) => {
        this.#resources.get('fields', headers)
        const request: Request = {
          method: { tag: 'get' },
          path: this.#none,
          scheme: this.#none,
          authority: this.#none,
          headers,
          body: undefined,
        }
        return this.#resources.make('outgoing-request', request)
      },
      '[method]outgoing-request.body': (self: unknown) => {
        const request = of(self)
        if (request.body !== undefined) return this.#failed
        request.body = this.#resources.make('outgoing-body', { parts: [], size: 0, state: 'new' })
        return this.#ok(request.body)
      },
      '[method]outgoing-request.method': method.get,
      '[method]outgoing-request.set-method': method.set,
      '[method]outgoing-request.path-with-query': path.get,
      '[method]outgoing-request.set-path-with-query': path.set,
      '[method]outgoing-request.scheme': scheme.get,
      '[method]outgoing-request.set-scheme': scheme.set,
      '[method]outgoing-request.authority': authority.get,
      '[method]outgoing-request.set-authority': authority.set,
      '[method]outgoing-request.headers': (self: unknown) =>
        this.#fields([...this.#resources.get<Fields>('fields', of(self).headers).list]),
    }
  }

  /** Time limits of a request: accepted and not used, because the run has a deadline. */
  #optionCalls(): Functions[string] {
    const calls: Record<string, () => unknown> = {
      '[constructor]request-options': () => this.#resources.make('request-options', {}),
    }
    for (const name of ['connect-timeout', 'first-byte-timeout', 'between-bytes-timeout']) {
      calls[`[method]request-options.${name}`] = () => this.#none
      calls[`[method]request-options.set-${name}`] = () => this.#ok()
    }
    return calls
  }

  #bodyCalls(): Functions[string] {
    return {
      '[method]outgoing-body.write': (self: ResourceToken) => {
        const body = this.#resources.get<Body>('outgoing-body', self)
        if (body.state !== 'new') return this.#failed
        body.state = 'open'
        const write: OutputStream['write'] = (bytes) => {
          if (body.state === 'done') return { failed: 'the body is finished' }
          if (body.size + bytes.length > this.#host.messageBytes / 2)
            return { failed: 'the body is too long' }
          this.#resources.keep(self, body.size + bytes.length)
          body.parts.push(bytes.slice())
          body.size += bytes.length
          return undefined
        }
        return this.#ok(this.#resources.make('output-stream', { write }))
      },
      '[static]outgoing-body.finish': (self: unknown) => {
        this.#resources.get<Body>('outgoing-body', self).state = 'done'
        return this.#ok()
      },
      '[method]incoming-body.stream': (self: ResourceToken) => {
        const body = this.#resources.get<{ bytes: Uint8Array | undefined }>('incoming-body', self)
        const { bytes } = body
        if (bytes === undefined) return this.#failed
        body.bytes = undefined
        this.#resources.keep(self, 0)
        const stream = this.#resources.make('input-stream', { read: this.#reader(bytes) })
        this.#resources.keep(stream, bytes.length)
        return this.#ok(stream)
      },
      '[static]incoming-body.finish': (self: ResourceToken) => {
        this.#resources.keep(self, 0)
        return this.#resources.make('future-trailers', {})
      },
      '[method]future-trailers.subscribe': () => this.#resources.ready,
      '[method]future-trailers.get': () => this.#some(this.#ok(this.#ok(this.#none))),
    }
  }

  /** Reads from the start to the end, in parts of at most the wanted length. */
  #reader(bytes: Uint8Array): InputStream['read'] {
    let at = 0
    return (length) => {
      if (at >= bytes.length) return undefined
      const part = bytes.slice(at, at + length)
      at += part.length
      return part
    }
  }

  // Responses

  #responseCalls(): Functions[string] {
    const of = (self: unknown): Response => this.#resources.get('incoming-response', self)
    return {
      '[method]future-incoming-response.subscribe': () => this.#resources.ready,
      '[method]future-incoming-response.get': (self: unknown) => this.#result(self),
      '[method]incoming-response.status': (self: unknown) => of(self).status,
      '[method]incoming-response.headers': (self: unknown) => this.#fields([...of(self).headers]),
      '[method]incoming-response.consume': (self: ResourceToken) => {
        const response = of(self)
        if (response.taken) return this.#failed
        response.taken = true
        this.#resources.keep(self, 0)
        const body = this.#resources.make('incoming-body', { bytes: response.body })
        this.#resources.keep(body, response.body.length)
        return this.#ok(body)
      },
    }
  }

  /** Sends the request when its result is asked for, because the body is written after `handle`. */
  #result(self: unknown): TaggedValue {
    const future = this.#resources.get<Future>('future-incoming-response', self)
    const request = this.#resources.get<Request>('outgoing-request', future.request)
    const body = request.body && this.#resources.get<Body>('outgoing-body', request.body)
    if (body !== undefined && body.state === 'open') return this.#none
    if (future.taken) return this.#some(this.#failed)
    future.taken = true
    const params = this.#params(request, body)
    this.drop(future.request)
    const reply = this.#host.ask('net_fetch', params) as Reply
    if (!('ok' in reply)) return this.#some(this.#ok({ tag: 'error', value: this.#code(reply) }))
    const { status, headers, body: text } = reply.ok
    const list = Object.entries(headers).map(
      ([name, value]) => [name, new TextEncoder().encode(String(value))] as const,
    )
    const response: Response = { status, headers: list, body: this.#host.fromBase64(text), taken: false }
    const made = this.#resources.make('incoming-response', response)
    this.#resources.keep(made, response.body.length)
    return this.#some(this.#ok(this.#ok(made)))
  }

  /** What a request keeps is dropped with it: when it has been sent, or when the component drops it. */
  drop(value: unknown): void {
    if (this.#resources.is('future-incoming-response', value))
      this.drop(this.#resources.get<Future>('future-incoming-response', value).request)
    if (this.#resources.is('outgoing-body', value)) this.#empty(value as ResourceToken)
    if (!this.#resources.is('outgoing-request', value)) return
    const { headers, body } = this.#resources.get<Request>('outgoing-request', value)
    this.#resources.keep(headers, 0)
    if (body !== undefined) this.#empty(body)
  }

  #empty(token: ResourceToken): void {
    const body = this.#resources.get<Body>('outgoing-body', token)
    body.state = 'done'
    body.size = body.parts.length = 0
    this.#resources.keep(token, 0)
  }

  #code({ code, error }: { readonly code: string; readonly error: string }): TaggedValue {
    if (code === 'capability-denied') return { tag: 'HTTP-request-denied' }
    if (code === 'ssrf-blocked') return { tag: 'destination-IP-prohibited' }
    return { tag: 'internal-error', value: this.#some(error) }
  }

  #params(
    { method, path, scheme, authority, headers }: Request,
    body: Body | undefined,
  ): Readonly<Record<string, unknown>> {
    const text = ({ tag, value }: TaggedValue, otherwise: string): string =>
      tag === 'some' ? String(value) : otherwise
    const wanted = scheme.tag === 'some' ? (scheme.value as TaggedValue) : { tag: 'HTTPS' }
    const protocol = wanted.tag === 'other' ? String(wanted.value) : wanted.tag.toLowerCase()
    const verb = method.tag === 'other' ? String(method.value) : method.tag
    const given: Record<string, string> = Object.create(null)
    for (const [name, value] of this.#resources.get<Fields>('fields', headers).list) {
      const said = new TextDecoder().decode(value)
      given[name] = given[name] === undefined ? said : `${given[name]}, ${said}`
    }
    const bytes = new Uint8Array(body?.size ?? 0)
    let at = 0
    for (const part of body?.parts ?? []) {
      bytes.set(part, at)
      at += part.length
    }
    return {
      url: `${protocol}://${text(authority, '')}${text(path, '/')}`,
      method: verb.toUpperCase(),
      headers: given,
      encoding: 'base64',
      ...(bytes.length > 0 && { body: this.#host.toBase64(bytes) }),
    }
  }
}
