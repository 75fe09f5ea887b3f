import {
  createHash,
  generateKeyPairSync,
  type KeyObject,
  randomBytes,
  sign,
  X509Certificate,
} from 'node:crypto'

/** X.509 certificates for keys that this program makes: a private authority, and what it signs. */

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
/** A distinguished name with nothing but a common name. */
export const nameOf = (text: string): Buffer =>
  sequence(der(0x31, sequence(oid('550403'), der(0x0c, Buffer.from(text.slice(0, 64))))))
const time = (ms: number): Buffer =>
  der(0x18, Buffer.from(`${new Date(ms).toISOString().replace(/[-:T]|\.\d+/g, '')}`))

const extension = (id: string, critical: boolean, value: Buffer): Buffer =>
  sequence(oid(id), ...(critical ? [TRUE] : []), octets(value))

const DAY = 86_400_000
const LIFE_DAYS = 30

type Certificate = {
  readonly lifeDays?: number | undefined
  readonly subject: Buffer
  readonly issuer: Buffer
  readonly publicKey: KeyObject
  readonly signer: KeyObject
  readonly extensions: readonly Buffer[]
}

function certificate({
  subject,
  issuer,
  publicKey,
  signer,
  extensions,
  lifeDays = LIFE_DAYS,
}: Certificate): string {
  const now = Date.now()
  // The first byte keeps the number positive and its length fixed.
  const serial = Buffer.concat([Buffer.from([0x40]), randomBytes(15)])
  const body = sequence(
    der(0xa0, der(0x02, Buffer.from([2]))),
    der(0x02, serial),
    ECDSA_SHA256,
    issuer,
    sequence(time(now - DAY), time(now + lifeDays * DAY)),
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
/** A new key pair on P-256. */
export const makeKeys = () => generateKeyPairSync('ec', { namedCurve: 'prime256v1' })

/** The keys of an authority. */
export type AuthorityKeys = { readonly publicKey: KeyObject; readonly privateKey: KeyObject }

/** The certificate of an authority, signed by itself, PEM. */
export const authorityCertificate = (
  name: Buffer,
  { publicKey, privateKey }: AuthorityKeys,
  lifeDays?: number | undefined,
): string =>
  certificate({
    subject: name,
    issuer: name,
    publicKey,
    signer: privateKey,
    lifeDays,
    extensions: [
      extension('551d13', true, sequence(TRUE, der(0x02, Buffer.from([0])))),
      extension('551d0f', true, bits(Buffer.from([0x06]), 1)),
      extension('551d0e', false, octets(keyId(publicKey))),
    ],
  })

/** What a certificate is for: the TLS server of a host, or both ends of a connection. */
const USES = { server: ['2b06010505070301'], peer: ['2b06010505070301', '2b06010505070302'] } as const

/** A certificate for one host name, signed by an authority, PEM. */
export const hostCertificate = (
  host: string,
  publicKey: KeyObject,
  authority: AuthorityKeys & { readonly name: Buffer },
  {
    use = 'server',
    lifeDays,
  }: { readonly use?: keyof typeof USES; readonly lifeDays?: number | undefined } = {},
): string =>
  certificate({
    subject: nameOf(host),
    issuer: authority.name,
    publicKey,
    signer: authority.privateKey,
    lifeDays,
    extensions: [
      extension('551d13', true, sequence()),
      extension('551d0f', true, bits(Buffer.from([0x80]), 7)),
      extension('551d25', false, sequence(...USES[use].map(oid))),
      extension('551d11', false, sequence(der(0x82, Buffer.from(host)))),
      extension('551d0e', false, octets(keyId(publicKey))),
      extension('551d23', false, sequence(der(0x80, keyId(authority.publicKey)))),
    ],
  })
