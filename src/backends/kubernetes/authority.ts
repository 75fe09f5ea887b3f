import { createPrivateKey, createPublicKey } from 'node:crypto'
import {
  type AuthorityKeys,
  authorityCertificate,
  hostCertificate,
  makeKeys,
  nameOf,
} from '../../host/net/certificate.ts'
import type { ChannelIdentity } from '../../host/net/pod-channel.ts'
import { SandboxError } from '../../model/errors.ts'
import type { ClusterApi } from './cluster-api.ts'
import { AUTHORITY_SECRET, MANAGED } from './launch.ts'

/**
 * Who may speak on the channel to a Pod. The authority of a namespace signs a certificate for every Pod and one for every
 * control plane; its key is in a Secret there, so that every replica can reach every Pod.
 */

/** The name in the control plane's certificate; guest/channel accepts no other. */
const CONTROL_PLANE = 'control.ringfence'
const TITLE = 'ringfence pods'
const AUTHORITY_DAYS = 3650
const DAY_SECS = 86_400

/** The name in the certificate of a Pod. */
export const podHost = (pod: string): string => `${pod}.pod.ringfence`

/** Signs the certificates of one namespace. */
export class ChannelAuthority {
  readonly certificate: string
  readonly #keys: AuthorityKeys & { readonly name: Buffer }

  private constructor(privateKey: string, certificate: string) {
    const own = createPrivateKey(privateKey)
    this.certificate = certificate
    this.#keys = { name: nameOf(TITLE), privateKey: own, publicKey: createPublicKey(own) }
  }

  /** The authority of the namespace. The first who asks creates it. */
  static async of(api: ClusterApi): Promise<ChannelAuthority> {
    const known = await api.readSecret(AUTHORITY_SECRET)
    const { data } = known ?? (await createOrRead(api))
    const text = (name: string): string => Buffer.from(data?.[name] ?? '', 'base64').toString('utf8')
    return new ChannelAuthority(text('key'), text('certificate'))
  }

  /** What a Pod shows: valid as long as it can live. SECURITY: it is a server's, so no Pod can pose as a control plane. */
  forPod(pod: string, lifeSecs: number): ChannelIdentity {
    return this.#issue(podHost(pod), 'server', Math.ceil(lifeSecs / DAY_SECS) + 1)
  }

  /** What a control plane shows; a new one for each connection. */
  forControlPlane(): ChannelIdentity {
    return this.#issue(CONTROL_PLANE, 'peer', 1)
  }

  #issue(host: string, use: 'server' | 'peer', lifeDays: number): ChannelIdentity {
    const { publicKey, privateKey } = makeKeys()
    return {
      certificate: hostCertificate(host, publicKey, this.#keys, { use, lifeDays }),
      key: String(privateKey.export({ type: 'sec1', format: 'pem' })),
      authority: this.certificate,
    }
  }
}

/** Of two who create it at once, one succeeds, and both use that one. */
async function createOrRead(api: ClusterApi) {
  const keys = makeKeys()
  const certificate = authorityCertificate(nameOf(TITLE), keys, AUTHORITY_DAYS)
  const key = String(keys.privateKey.export({ type: 'pkcs8', format: 'pem' }))
  try {
    return await api.createSecret({
      metadata: { name: AUTHORITY_SECRET, labels: { ...MANAGED } },
      immutable: true,
      stringData: { key, certificate },
    })
  } catch (error) {
    const other = error instanceof SandboxError && error.code === 'conflict'
    const made = other ? await api.readSecret(AUTHORITY_SECRET) : undefined
    if (made) return made
    throw error
  }
}
