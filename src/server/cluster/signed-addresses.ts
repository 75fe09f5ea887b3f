import type { IncomingMessage } from 'node:http'
import { isSignature, signedSandbox } from '../e2b/envd/transfer.ts'

/** What signed addresses are checked with. */
export type SignedAddressParts = {
  /** The ids of the sandboxes of this node, and of all nodes, that have not ended. */
  readonly liveHere: () => readonly string[]
  readonly liveAnywhere: () => Promise<readonly string[]>
  readonly accessToken: (id: string) => string
}

/** Finds the sandbox that the address of a file was signed for. Its node checks the signature again, and when it expires. */
export class SignedAddresses {
  readonly #parts: SignedAddressParts
  #running: Promise<unknown> = Promise.resolve()
  #next: Promise<ReadonlyMap<string, string>> | undefined
  #tokens: ReadonlyMap<string, string> = new Map()

  constructor(parts: SignedAddressParts) {
    this.#parts = parts
  }

  async sandboxOf({ url = '/', method = 'GET' }: IncomingMessage): Promise<string | undefined> {
    const query = new URLSearchParams(url.slice(url.indexOf('?') + 1))
    if (!isSignature(query)) return undefined
    const { liveHere, accessToken } = this.#parts
    const here = signedSandbox(liveHere(), method, query, { tokens: { access: accessToken } })
    if (here !== undefined) return here
    const tokens = await this.#list()
    const access = (id: string): string => tokens.get(id) ?? accessToken(id)
    return signedSandbox([...tokens.keys()], method, query, { tokens: { access } })
  }

  /**
   * The tokens of all sandboxes. SECURITY: anybody may ask, without a key. So there is one query at a time, whose result all who
   * wait for it share, and a token is derived once. A query that has begun may miss a new sandbox, so it is not joined.
   */
  #list(): Promise<ReadonlyMap<string, string>> {
    this.#next ??= this.#running.then(() => {
      this.#next = undefined
      const listed = this.#read()
      this.#running = listed.catch(() => {})
      return listed
    })
    return this.#next
  }

  async #read(): Promise<ReadonlyMap<string, string>> {
    const ids = await this.#parts.liveAnywhere()
    this.#tokens = new Map(ids.map((id) => [id, this.#tokens.get(id) ?? this.#parts.accessToken(id)]))
    return this.#tokens
  }
}
