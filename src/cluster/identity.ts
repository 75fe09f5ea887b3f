import {
  createHash,
  createPrivateKey,
  createPublicKey,
  hkdfSync,
  randomBytes,
  X509Certificate,
} from 'node:crypto'
import { existsSync, readFileSync } from 'node:fs'
import { writeAtomically } from '../host/files/atomic-file.ts'
import {
  type AuthorityKeys,
  authorityCertificate,
  hostCertificate,
  makeKeys,
  nameOf,
} from '../host/net/certificate.ts'
import { decrypt, encrypt } from '../host/secrets/authenticated-cipher.ts'
import { SandboxError } from '../model/errors.ts'
import {
  addSecret,
  insertJoinToken,
  readSecret,
  readSecrets,
  takeJoinToken,
} from '../store/cluster-secrets.ts'
import type { Store } from '../store/sql.ts'

/**
 * What makes a machine a member of a cluster: the cluster's key. With it a node opens the shared secrets in the database, and
 * the key of the cluster's certificate authority is one of them, so that every node signs its own certificate. A machine gets
 * the key by a token that works once, or as a file that the operator puts there.
 */

const KEY_BYTES = 32
const TOKEN = /^rfj_[0-9a-f]{48}$/
const AUTHORITY = 'authority'
const AUTHORITY_DAYS = 3650

/** The secret that all nodes of one cluster share. */
export class ClusterKey {
  readonly #bytes: Buffer

  constructor(bytes: Buffer) {
    this.#bytes = bytes
  }

  static create(): ClusterKey {
    return new ClusterKey(randomBytes(KEY_BYTES))
  }

  /** The key in a file; undefined if there is no such file. */
  static load(file: string): ClusterKey | undefined {
    if (!existsSync(file)) return undefined
    const bytes = Buffer.from(readFileSync(file, 'utf8').trim(), 'hex')
    if (bytes.length === KEY_BYTES) return new ClusterKey(bytes)
    throw new SandboxError('invalid-config', `the cluster key in \`${file}\` is not 64 hexadecimal digits`, {
      hint: 'restore it, or remove it and join again with a new token',
    })
  }

  save(file: string): void {
    writeAtomically(file, `${this.#bytes.toString('hex')}\n`)
  }

  /** A secret of its own for one purpose. */
  derive(purpose: string): Buffer {
    return Buffer.from(hkdfSync('sha256', this.#bytes, Buffer.alloc(0), `ringfence ${purpose}`, KEY_BYTES))
  }

  seal(purpose: string, text: string): string {
    return seal(this.derive(purpose), text)
  }

  unseal(purpose: string, sealed: string): string {
    return unseal(this.derive(purpose), sealed)
  }

  /** The key itself, encrypted with the token. */
  wrapped(token: string): string {
    return seal(keyOfToken(token), this.#bytes.toString('hex'))
  }
}

const keyOfToken = (token: string): Buffer =>
  Buffer.from(hkdfSync('sha256', token, Buffer.alloc(0), 'ringfence join', KEY_BYTES))
const hashOfToken = (token: string): string => createHash('sha256').update(`join ${token}`).digest('hex')

const seal = (key: Buffer, text: string): string => encrypt(key, Buffer.from(text)).toString('base64')

function unseal(key: Buffer, sealed: string): string {
  const text = decrypt(key, Buffer.from(sealed, 'base64'))
  if (text) return text.toString()
  throw new SandboxError('invalid-config', 'the cluster key does not fit this database', {
    hint: 'join the cluster of this database: `ringfence cluster join TOKEN`',
  })
}

/** The certificate authority of a cluster. */
export type ClusterAuthority = AuthorityKeys & { readonly name: Buffer; readonly certificate: string }

/** Makes the database a cluster's; throws if it is one already. */
export async function initCluster(store: Store, key: ClusterKey): Promise<void> {
  const keys = makeKeys()
  const title = `ringfence cluster ${randomBytes(6).toString('hex')}`
  const certificate = authorityCertificate(nameOf(title), keys, AUTHORITY_DAYS)
  const privateKey = keys.privateKey.export({ type: 'pkcs8', format: 'pem' })
  const sealed = key.seal(AUTHORITY, JSON.stringify({ title, certificate, privateKey }))
  if (await store.write((tx) => addSecret(tx, AUTHORITY, sealed))) return
  throw new SandboxError('conflict', 'this database already belongs to a cluster', {
    hint: 'on one of its nodes run `ringfence cluster token`, and here `ringfence cluster join TOKEN`',
  })
}

/** The authority of the cluster in this database. */
export async function authorityOf(store: Store, key: ClusterKey): Promise<ClusterAuthority> {
  const sealed = await readSecret(store, AUTHORITY)
  if (sealed === undefined)
    throw new SandboxError('invalid-config', 'this database does not belong to a cluster yet', {
      hint: 'run `ringfence cluster init` once',
    })
  const { title, certificate, privateKey } = JSON.parse(key.unseal(AUTHORITY, sealed)) as {
    readonly title: string
    readonly certificate: string
    readonly privateKey: string
  }
  const own = createPrivateKey(privateKey)
  return { name: nameOf(title), certificate, privateKey: own, publicKey: createPublicKey(own) }
}

const CHAIN = 'chain '

/** Lets every node verify this node's chain of the audit log. SECURITY: sealed, so that the database alone cannot replace a key. */
export async function registerChain(
  store: Store,
  key: ClusterKey,
  chain: { readonly id: string; readonly publicKey: string },
): Promise<void> {
  const sealed = key.seal(CHAIN, `${chain.id} ${chain.publicKey}`)
  await store.write((tx) => addSecret(tx, `${CHAIN}${chain.id}`, sealed))
}

/** The public keys of all chains, by the id of the chain. */
export async function chainKeysOf(store: Store, key: ClusterKey): Promise<ReadonlyMap<string, string>> {
  const sealed = await readSecrets(store, CHAIN)
  return new Map([...sealed.values()].map((value) => key.unseal(CHAIN, value).split(' ') as [string, string]))
}

/** A token that lets one machine join until it expires. */
export async function createJoinToken(store: Store, key: ClusterKey, lifeMs: number): Promise<string> {
  const token = `rfj_${randomBytes(24).toString('hex')}`
  const row = { hash: hashOfToken(token), bundle: key.wrapped(token), expiresAt: Date.now() + lifeMs }
  await store.write((tx) => insertJoinToken(tx, row))
  return token
}

/** The cluster's key for a token. INVARIANT: the token is gone with this, whether it was still valid or not. */
export async function redeemJoinToken(store: Store, token: string): Promise<ClusterKey> {
  const row = TOKEN.test(token) ? await store.write((tx) => takeJoinToken(tx, hashOfToken(token))) : undefined
  if (!row || row.expiresAt <= Date.now())
    throw new SandboxError('forbidden', 'the join token is not valid: unknown, used or expired', {
      hint: 'create another one on a node of the cluster: `ringfence cluster token`',
    })
  return new ClusterKey(Buffer.from(unseal(keyOfToken(token), row.bundle), 'hex'))
}

/** What a node shows to others: both ends of every connection between nodes have one. */
export type NodeCertificate = {
  readonly certificate: string
  readonly privateKey: string
  readonly authority: string
  readonly fingerprint: string
}

/** The name in a node's certificate. */
export const nodeHost = (id: string): string => `${id}.node.ringfence`

/** A new certificate for one run of a node; its key is only in this process. */
export function issueNodeCertificate(authority: ClusterAuthority, id: string): NodeCertificate {
  const { publicKey, privateKey } = makeKeys()
  const certificate = hostCertificate(nodeHost(id), publicKey, authority, { use: 'peer', lifeDays: 3650 })
  return {
    certificate,
    privateKey: String(privateKey.export({ type: 'pkcs8', format: 'pem' })),
    authority: authority.certificate,
    fingerprint: new X509Certificate(certificate).fingerprint256,
  }
}
