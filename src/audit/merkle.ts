import { hash } from 'node:crypto'

/**
 * The Merkle tree of RFC 6962 over record hashes. A leaf is the record's own hash: its preimage starts with `{`, that of a
 * node with 0x01, so neither can pass for the other.
 */

/** The roots of the perfect subtrees, largest first: enough to extend the tree without its leaves. */
export type Frontier = readonly string[]

const node = (left: string, right: string): string =>
  hash('sha256', Buffer.from(`01${left}${right}`, 'hex'), 'hex')

const EMPTY_ROOT = hash('sha256', '', 'hex')

/** Adds the leaf with index `count` in place: one hash each, amortised. */
export function grow(frontier: string[], count: number, leaf: string): void {
  let root = leaf
  // INVARIANT: there is one subtree for each 1 bit of `count`; adding one carries like binary addition.
  for (let rest = count; rest % 2 === 1; rest = (rest - 1) / 2) root = node(frontier.pop() as string, root)
  frontier.push(root)
}

/** The root of the whole tree. */
export function rootOf(frontier: Frontier): string {
  const last = frontier.at(-1)
  if (last === undefined) return EMPTY_ROOT
  return frontier.slice(0, -1).reduceRight((right, left) => node(left, right), last)
}

/** The number of subtrees of a tree with `count` leaves. */
export const frontierSize = (count: number): number => count.toString(2).replaceAll('0', '').length

/** The frontier of these leaves. */
export function frontierOf(leaves: Iterable<string>): string[] {
  const frontier: string[] = []
  let count = 0
  for (const leaf of leaves) grow(frontier, count++, leaf)
  return frontier
}

/** A perfect subtree, and whether the leaf whose path is wanted is below it. */
type Subtree = { readonly root: string; readonly hasLeaf: boolean }

/**
 * Computes the path of one leaf while the leaves come in order, with one hash for each leaf and without keeping them: a log has
 * hundreds of thousands of records, and a server answers other requests meanwhile.
 */
export class PathBuilder {
  readonly #index: number
  readonly #path: string[] = []
  readonly #subtrees: Subtree[] = []
  #count = 0

  constructor(index: number) {
    this.#index = index
  }

  add(leaf: string): void {
    let tree: Subtree = { root: leaf, hasLeaf: this.#count === this.#index }
    // INVARIANT: as in `grow`, one subtree for each 1 bit of the count.
    for (let rest = this.#count; rest % 2 === 1; rest = (rest - 1) / 2)
      tree = this.#join(this.#subtrees.pop() as Subtree, tree)
    this.#subtrees.push(tree)
    this.#count++
  }

  /** The root of the leaves so far, and the sibling hashes from the leaf up to it, lowest first. To be called once. */
  finish(): { readonly root: string; readonly path: readonly string[] } {
    const last = this.#subtrees.pop()
    if (last === undefined) return { root: EMPTY_ROOT, path: [] }
    const whole = this.#subtrees.reduceRight((right, left) => this.#join(left, right), last)
    return { root: whole.root, path: this.#path }
  }

  #join(left: Subtree, right: Subtree): Subtree {
    if (left.hasLeaf) this.#path.push(right.root)
    else if (right.hasLeaf) this.#path.push(left.root)
    return { root: node(left.root, right.root), hasLeaf: left.hasLeaf || right.hasLeaf }
  }
}

/** Computes the root from one leaf and its path; undefined if the path has the wrong length. */
export function rootFromPath(leaf: string, index: number, count: number, path: Frontier): string | undefined {
  if (count <= 1) return path.length === 0 && index === 0 ? leaf : undefined
  const sibling = path.at(-1)
  if (sibling === undefined || index >= count) return undefined
  const split = splitOf(count)
  const rest = path.slice(0, -1)
  const own =
    index < split
      ? rootFromPath(leaf, index, split, rest)
      : rootFromPath(leaf, index - split, count - split, rest)
  if (own === undefined) return undefined
  return index < split ? node(own, sibling) : node(sibling, own)
}

/** The largest power of two below `count`. */
function splitOf(count: number): number {
  let split = 1
  while (split * 2 < count) split *= 2
  return split
}
