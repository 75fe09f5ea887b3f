import { lstatSync, readdirSync, readlinkSync, type Stats } from 'node:fs'
import { join } from 'node:path'
import { setImmediate as turn } from 'node:timers/promises'
import { OVERLAY_KINDS } from '../guest/protocol.ts'
import { at, isBinary, sameContent, type UntrustedPath } from './read.ts'

/** One change that a command made in the overlay. */
export type Change = {
  readonly change: 'added' | 'changed' | 'deleted' | 'mode'
  readonly kind: 'file' | 'dir' | 'link' | 'other'
  /** The original's path on the host. */
  readonly path: string
  /** The path relative to the mounted directory. */
  readonly relative: string
  readonly root: string
  /** The path inside the sandbox. */
  readonly inside: string
  /** The file with the new content; absent for a deletion. */
  readonly from?: string
  /** The root directory of `from`. */
  readonly upper?: string
  readonly mode: number
  readonly size: number
  readonly binary: boolean
  readonly target?: string
}

const KINDS: Readonly<{ [letter: string]: Change['kind'] | 'whiteout' }> = OVERLAY_KINDS

/** A mount: the original, its path inside the sandbox, and the directory of its changes. */
export type Layers = { readonly root: string; readonly target: string; readonly upper: string }

/** How many changes are processed before the event loop runs again. */
const STRIDE = 100

/** The changes below one mount, from the agent's records. */
export async function changesOf(layers: Layers, records: readonly string[]): Promise<readonly Change[]> {
  const changes: Change[] = []
  const seen = new Set<string>()
  for (let i = 0; i + 2 < records.length; i += 3) {
    if (i % (3 * STRIDE) === 0) await turn()
    const [kind = '', mode = '0', size = '0', opaque = '0'] = (records[i] ?? '').split(' ')
    const relative = records[i + 1] ?? ''
    seen.add(relative)
    const known = KINDS[kind] ?? 'other'
    const entry: Entry = {
      kind: known === 'whiteout' ? 'other' : known,
      whiteout: known === 'whiteout',
      mode: Number.parseInt(mode, 8) & 0o777,
      size: Number(size),
      target: records[i + 2] ?? '',
    }
    // A file that disappears meanwhile is no longer a change.
    const change = await changeOf(layers, relative, entry).catch(() => undefined)
    if (change) changes.push(change)
    if (opaque === '1') changes.push(...hidden(layers, relative))
  }
  // A replaced directory hides the entries of the old one, but not the entries of the new one.
  return changes.filter(
    (one) => one.change !== 'deleted' || one.from === undefined || !seen.has(one.relative),
  )
}

type Entry = Pick<Change, 'kind' | 'mode' | 'size'> & { readonly whiteout: boolean; readonly target: string }

/** The current original; undefined if there is none. */
function originalOf<T>(untrusted: UntrustedPath, look: (path: string, stat: Stats) => T): T | undefined {
  try {
    return at(untrusted, (path) => {
      const stat = lstatSync(path, { throwIfNoEntry: false })
      return stat && look(path, stat)
    })
  } catch {
    return undefined
  }
}

async function changeOf(layers: Layers, relative: string, entry: Entry): Promise<Change | undefined> {
  const { root, upper } = layers
  const { kind, mode, size, target, whiteout } = entry
  const original = originalOf({ root, relative }, (path, stat) => ({
    stat,
    link: stat.isSymbolicLink() ? readlinkSync(path) : undefined,
  }))
  if (whiteout) return original && deleted(layers, relative, original.stat)
  const fresh = { root: upper, relative }
  const binary = kind === 'file' && isBinary(fresh)
  const base = { ...named(layers, relative), kind, from: join(upper, relative), upper, mode, size, binary }
  const change = { ...base, ...(target ? { target } : {}) }
  if (!original) return { change: 'added', ...change }
  const { stat, link } = original
  const same =
    (kind === 'dir' && stat.isDirectory()) ||
    (kind === 'link' && link === target) ||
    (kind === 'file' && stat.isFile() && stat.size === size && (await sameContent({ root, relative }, fresh)))
  if (!same) return { change: 'changed', ...change }
  if (kind === 'link' || (stat.mode & 0o777) === mode) return undefined
  return { change: 'mode', ...change }
}

const named = ({ root, target }: Layers, relative: string) => ({
  path: join(root, relative),
  inside: join(target, relative),
  relative,
  root,
})

function deleted(layers: Layers, relative: string, stat: Stats): Change {
  const kind = stat.isDirectory() ? 'dir' : stat.isFile() ? 'file' : stat.isSymbolicLink() ? 'link' : 'other'
  const { size } = stat
  return { change: 'deleted', ...named(layers, relative), kind, mode: stat.mode & 0o777, size, binary: false }
}

/** The entries of the original directory, all hidden by the new one. */
function hidden(layers: Layers, relative: string): readonly Change[] {
  const { root } = layers
  const names = originalOf({ root, relative }, (path, stat) => (stat.isDirectory() ? readdirSync(path) : []))
  return (names ?? []).flatMap((name) => {
    const inner = join(relative, name)
    const change = originalOf({ root, relative: inner }, (_, stat) => deleted(layers, inner, stat))
    return change ? [{ ...change, from: join(root, relative) }] : []
  })
}
