import { randomBytes } from 'node:crypto'
import { createSecureContext, type SecureContext } from 'node:tls'
import { authorityCertificate, hostCertificate, makeKeys, nameOf } from '../../host/net/certificate.ts'

/**
 * The certificate authority of one sandbox. Its key never leaves this process; only that sandbox trusts it, and it is used
 * only for hosts with a brokered secret.
 */

const MAX_LEAVES = 256

/** Creates certificates for the hosts whose TLS the proxy terminates. */
export class Authority {
  /** The CA certificate, PEM. */
  readonly certificate: string
  readonly #name = nameOf(`ringfence ${randomBytes(6).toString('hex')}`)
  readonly #keys = makeKeys()
  readonly #leaves = new Map<string, SecureContext>()

  constructor() {
    this.certificate = authorityCertificate(this.#name, this.#keys)
  }

  /** The certificate for this host; created once. */
  contextFor(host: string): SecureContext {
    const known = this.#leaves.get(host)
    if (known !== undefined) return known
    if (this.#leaves.size >= MAX_LEAVES) this.#leaves.clear()
    const { publicKey, privateKey } = makeKeys()
    const leaf = hostCertificate(host, publicKey, { ...this.#keys, name: this.#name })
    const key = privateKey.export({ type: 'pkcs8', format: 'pem' })
    const context = createSecureContext({ cert: leaf + this.certificate, key, minVersion: 'TLSv1.2' })
    this.#leaves.set(host, context)
    return context
  }
}
