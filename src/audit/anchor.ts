import { closeSync, statSync } from 'node:fs'
import type { Json } from '../model/event.ts'
import { assertPrivateFile } from '../model/files/private-file.ts'
import { canonical } from './canonical.ts'
import {
  createKey,
  GENESIS,
  type Head,
  type KeyJson,
  parseHead,
  type SigningKey,
  signHead,
  signingKeyOf,
  type VerifyKey,
  verifyKeyOf,
} from './chain.ts'
import {
  damaged,
  type LastWrite,
  openSettled,
  pathsOf,
  replaceFile,
  segmentsIn,
  syncDir,
  textOf,
  writeSettled,
} from './files.ts'
import { type Frontier, frontierSize, rootOf } from './merkle.ts'

/** The signed head with the tree's frontier, which is needed to append without reading the log. */
export type Anchor = { readonly head: Head; readonly frontier: Frontier }

/**
 * The anchor file holds the last two anchors in slots of one disk block, each a line padded with spaces:
 * `{"frontier":["9f…"],"head":{"count":1,"hash":"9f…",…,"signature":"…"}}   ⏎`
 * The older slot is overwritten in place, which costs one sync; a new file and a rename would cost three.
 * INVARIANT: a slot is half-written only while the lock exists, held or left by a crash.
 */
const SLOT_BYTES = 4096

/** The content of the anchor file. */
export type Anchored = {
  readonly anchor: Anchor
  /** The slot of the anchor; the next one is written to the other slot. */
  readonly slot: 0 | 1
  /** The whole file. */
  readonly text: string
}

const slotText = (anchor: Anchor): string =>
  `${canonical(anchor as unknown as Json).padEnd(SLOT_BYTES - 1)}\n`

const slotIn = (text: string, slot: 0 | 1): string => text.slice(slot * SLOT_BYTES, (slot + 1) * SLOT_BYTES)

/** The text of the anchor file; undefined if there is no such file. */
export const readAnchors = (home: string): string | undefined => textOf(pathsOf(home).head)

/**
 * The newer of the two anchors; a string describes the problem. One slot may be invalid only if the caller knows that a
 * writer crashed.
 * SECURITY: otherwise corrupting the newer slot would be a way to roll the audit log back to the older one.
 */
export function parseAnchors(text: string, key: VerifyKey, torn: 'refused' | 'skipped'): Anchored | string {
  if (text.length !== SLOT_BYTES * 2) return 'it has the wrong size'
  const [first, second] = [parseSlot(slotIn(text, 0), key), parseSlot(slotIn(text, 1), key)]
  if (typeof first === 'string') {
    return torn === 'refused' || typeof second === 'string' ? first : { anchor: second, slot: 1, text }
  }
  if (typeof second === 'string') return torn === 'refused' ? second : { anchor: first, slot: 0, text }
  const newer = second.head.count > first.head.count
  return newer ? { anchor: second, slot: 1, text } : { anchor: first, slot: 0, text }
}

function parseSlot(text: string, key: VerifyKey): Anchor | string {
  const anchor = parseAnchor(text, key)
  if (typeof anchor === 'string') return anchor
  // SECURITY: exactly our bytes; otherwise another encoding of the same values would pass as unchanged.
  return slotText(anchor) === text ? anchor : 'it is malformed'
}

/** Parses an anchor in a store: its canonical text only. A string describes the problem. */
export function parseAnchorText(text: string, key: VerifyKey): Anchor | string {
  const anchor = parseAnchor(text, key)
  if (typeof anchor === 'string') return anchor
  return canonical(anchor as unknown as Json) === text ? anchor : 'it is malformed'
}

function parseAnchor(text: string, key: VerifyKey): Anchor | string {
  const anchor = jsonIn(text) as Partial<Anchor> | undefined
  const head = parseHead(anchor?.head, key)
  if (typeof head === 'string') return head
  const frontier = isFrontier(anchor?.frontier) ? anchor.frontier : []
  if (frontier.length !== frontierSize(head.count) || rootOf(frontier) !== head.root)
    return 'its frontier does not lead to its Merkle root'
  return { frontier, head }
}

const isFrontier = (value: unknown): value is Frontier =>
  Array.isArray(value) && value.every((hash) => typeof hash === 'string' && /^[0-9a-f]{64}$/.test(hash))

function jsonIn(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}

const lastHeadWrite: LastWrite = { ms: 0 }

/** Writes the next anchor to the other slot and syncs it to disk. The caller holds the lock. */
export async function writeAnchor(
  home: string,
  last: Anchored,
  anchor: Anchor,
  isAwaited: boolean,
): Promise<Anchored> {
  const slot = last.slot === 0 ? 1 : 0
  const fresh = slotText(anchor)
  const fd = openSettled(pathsOf(home).head, 0)
  try {
    await writeSettled(fd, Buffer.from(fresh), slot * SLOT_BYTES, { last: lastHeadWrite, isAwaited })
  } finally {
    closeSync(fd)
  }
  const kept = slotIn(last.text, last.slot)
  return { anchor, slot, text: slot === 0 ? `${fresh}${kept}` : `${kept}${fresh}` }
}

/** The signing key of this audit log; undefined before its first use. */
export function loadKey(home: string): SigningKey | undefined {
  const json = readKey(home)
  if (json === undefined) return undefined
  if (json.d === undefined) throw damaged('the secret part of the signing key is missing')
  const file = pathsOf(home).key
  const { mode, uid } = statSync(file)
  // SECURITY: a user who can read the key can write records that verify.
  assertPrivateFile('the signing key of the audit log', { file, mode, uid, reader: process.geteuid?.() })
  return signingKeyOf(json)
}

/** The key to verify with; an auditor's copy of the state directory may lack the secret part. */
export function loadVerifyKey(home: string): VerifyKey | undefined {
  const json = readKey(home)
  return json === undefined ? undefined : verifyKeyOf(json.x)
}

function readKey(home: string): KeyJson | undefined {
  const text = textOf(pathsOf(home).key)
  if (text === undefined) return undefined
  const { x, d } = (jsonIn(text) as Partial<KeyJson> | undefined) ?? {}
  if (typeof x !== 'string') throw damaged('the signing key is unreadable')
  return { kty: 'OKP', crv: 'Ed25519', x, ...(typeof d === 'string' ? { d } : {}) }
}

/** Creates an audit log: a key and a head with zero records. The caller holds the lock. */
export function beginTrail(home: string, time: string): SigningKey {
  const paths = pathsOf(home)
  // SECURITY: losing the key must not be a way to start over unnoticed.
  if (segmentsIn(home).length > 0) throw damaged('the signing key is missing')
  const json = createKey()
  const key = signingKeyOf(json)
  const empty = { count: 0, hash: GENESIS, offset: 0, root: rootOf([]), segment: 1, seq: -1, time }
  const slot = slotText({ head: signHead(empty, key), frontier: [] })
  // INVARIANT: a key on disk always has its head, so a key without one means that the head was removed.
  replaceFile(paths.head, `${slot}${slot}`)
  syncDir(paths.anchor)
  replaceFile(paths.key, `${canonical({ ...json })}\n`)
  syncDir(paths.keys)
  return key
}
