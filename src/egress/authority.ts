import {
  createHash,
  generateKeyPairSync,
  type KeyObject,
  randomBytes,
  sign,
  X509Certificate,
} from 'node:crypto'
import { createSecureContext, type SecureContext } from 'node:tls'

/**
 * The certificate authority of one sandbox. Its key never leaves this process; only that sandbox trusts it, and it is used
 * only for hosts with a brokered secret.
 */

const der = (tag: number, ...parts: readonly Buffer[]): Buffer => {
  const body = Buffer.concat(parts)
  const size = body.length
  if (size < 128) return Buffer.concat([Buffer.from([tag, size]), body])
  const length = size < 256 ? [0x81, size] : [0x82, size >> 8, size & 255]
  return Buffer.concat([Buffer.from([tag, ...length]), body])
}
const sequence = (...parts: readonly Buffer[]): Buffer => der(0x30, ...parts)
const oid = (hex: string): Buffer => der(0x06, Buffer.from(hex, 'hex'))
const octets = (bytes: Buffer): Buffer => der(0x04, bytes)
const bits = (bytes: Buffer, unused = 0): Buffer => der(0x03, Buffer.from([unused]), bytes)
const TRUE = der(0x01, Buffer.from([255]))

const ECDSA_SHA256 = sequence(oid('2a8648ce3d040302'))
const nameOf = (text: string): Buffer =>
  sequence(der(0x31, sequence(oid('550403'), der(0x0c, Buffer.from(text.slice(0, 64))))))
const time = (ms: number): Buffer =>
  der(0x18, Buffer.from(`${new Date(ms).toISOString().replace(/[-:T]|\.\d+/g, '')}`))

const extension = (id: string, critical: boolean, value: Buffer): Buffer =>
  sequence(oid(id), ...(critical ? [TRUE] : []), octets(value))

const DAY = 86_400_000
const LIFE_DAYS = 30

type Certificate = {
  readonly subject: Buffer
  readonly issuer: Buffer
  readonly publicKey: KeyObject
  readonly signer: KeyObject
  readonly extensions: readonly Buffer[]
}

function certificate({ subject, issuer, publicKey, signer, extensions }: Certificate): string {
  const now = Date.now()
  // The first byte keeps the number positive and its length fixed.
  const serial = Buffer.concat([Buffer.from([0x40]), randomBytes(15)])
  const body = sequence(
    der(0xa0, der(0x02, Buffer.from([2]))),
    der(0x02, serial),
    ECDSA_SHA256,
    issuer,
    sequence(time(now - DAY), time(now + LIFE_DAYS * DAY)),
    subject,
    publicKey.export({ type: 'spki', format: 'der' }),
    der(0xa3, sequence(...extensions)),
  )
  const whole = sequence(body, ECDSA_SHA256, bits(sign('sha256', body, signer)))
  return new X509Certificate(whole).toString()
}

const keyId = (key: KeyObject): Buffer =>
  createHash('sha1')
    .update(key.export({ type: 'spki', format: 'der' }).subarray(-65))
    .digest()
const makeKeys = () => generateKeyPairSync('ec', { namedCurve: 'prime256v1' })

const MAX_LEAVES = 256

/** Creates certificates for the hosts whose TLS the proxy terminates. */
export class Authority {
  /** The CA certificate, PEM. */
  readonly certificate: string
  readonly #name: Buffer
  readonly #keys = makeKeys()
  readonly #leaves = new Map<string, SecureContext>()

  constructor() {
    this.#name = nameOf(`ringfence ${randomBytes(6).toString('hex')}`)
    this.certificate = certificate({
      subject: this.#name,
      issuer: this.#name,
      publicKey: this.#keys.publicKey,
      signer: this.#keys.privateKey,
      extensions: [
        extension('551d13', true, sequence(TRUE, der(0x02, Buffer.from([0])))),
        extension('551d0f', true, bits(Buffer.from([0x06]), 1)),
        extension('551d0e', false, octets(keyId(this.#keys.publicKey))),
      ],
    })
  }

  /** The certificate for this host; created once. */
  contextFor(host: string): SecureContext {
    const known = this.#leaves.get(host)
    if (known !== undefined) return known
    if (this.#leaves.size >= MAX_LEAVES) this.#leaves.clear()
    const { publicKey, privateKey } = makeKeys()
    const leaf = certificate({
      subject: nameOf(host),
      issuer: this.#name,
      publicKey,
      signer: this.#keys.privateKey,
      extensions: [
        extension('551d13', true, sequence()),
        extension('551d0f', true, bits(Buffer.from([0x80]), 7)),
        extension('551d25', false, sequence(oid('2b06010505070301'))),
        extension('551d11', false, sequence(der(0x82, Buffer.from(host)))),
        extension('551d0e', false, octets(keyId(publicKey))),
        extension('551d23', false, sequence(der(0x80, keyId(this.#keys.publicKey)))),
      ],
    })
    const key = privateKey.export({ type: 'pkcs8', format: 'pem' })
    const context = createSecureContext({ cert: leaf + this.certificate, key, minVersion: 'TLSv1.2' })
    this.#leaves.set(host, context)
    return context
  }
}
