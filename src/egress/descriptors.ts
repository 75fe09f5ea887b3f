import { descriptorLimit } from '../host/net/loopback.ts'
import { Admission, type AdmissionOwner } from '../model/admission.ts'

/** A connection has a client and a server. */
export const PER_CONNECTION = 2

const MOST = 16_384

/**
 * The descriptors that connections of sandboxes use together. SECURITY: a limit for each sandbox would not keep a few of them
 * from using all. An eighth of the process's descriptors is shared equally by tenants, and then by sandboxes. One below its
 * share is admitted even if others have more than theirs, up to half of the descriptors.
 */
export class Descriptors {
  readonly #shared: Admission
  readonly #most: number

  constructor(limit = descriptorLimit()) {
    const shared = Math.max(PER_CONNECTION, Math.min(MOST, Math.floor(limit / 8)))
    this.#shared = new Admission('connections', { running: shared, waiting: 0 })
    this.#most = shared * 4
  }

  /** Returns the function that gives them back; undefined if the owner has its share already. */
  take(owner: AdmissionOwner | undefined, count: number): (() => void) | undefined {
    return this.#shared.running < this.#most ? this.#shared.take(owner, count) : undefined
  }
}

let own: Descriptors | undefined

/** Those of this process. */
export function ownDescriptors(): Descriptors {
  own ??= new Descriptors()
  return own
}
