import { hash } from 'node:crypto'
import { describe, expect, it } from 'vitest'
import { frontierOf, frontierSize, PathBuilder, rootFromPath, rootOf } from './merkle.ts'

const leafOf = (index: number): string => hash('sha256', `{${index}}`, 'hex')
const leavesOf = (count: number): string[] => Array.from({ length: count }, (_, index) => leafOf(index))

/** RFC 6962 section 2.1, word for word. */
function treeHash(leaves: readonly string[]): string {
  if (leaves.length === 0) return hash('sha256', '', 'hex')
  if (leaves.length === 1) return leaves[0] as string
  let split = 1
  while (split * 2 < leaves.length) split *= 2
  const halves = [treeHash(leaves.slice(0, split)), treeHash(leaves.slice(split))]
  return hash('sha256', Buffer.from(`01${halves.join('')}`, 'hex'), 'hex')
}

describe('Merkle tree', () => {
  it('matches the tree of the RFC at every size', () => {
    for (let count = 0; count <= 40; count++) {
      const frontier = frontierOf(leavesOf(count))
      expect(rootOf(frontier)).toBe(treeHash(leavesOf(count)))
      expect(frontier).toHaveLength(frontierSize(count))
    }
  })

  it('proves every leaf of every tree, and only at its position', () => {
    for (let count = 1; count <= 20; count++) {
      const leaves = leavesOf(count)
      const root = rootOf(frontierOf(leaves))
      for (let index = 0; index < count; index++) {
        const builder = new PathBuilder(index)
        for (const leaf of leaves) builder.add(leaf)
        const { root: built, path } = builder.finish()
        expect(built).toBe(root)
        expect(rootFromPath(leafOf(index), index, count, path)).toBe(root)
        expect(rootFromPath(leafOf(index + 1), index, count, path)).not.toBe(root)
        if (count > 1) expect(rootFromPath(leafOf(index), (index + 1) % count, count, path)).not.toBe(root)
        expect(rootFromPath(leafOf(index), index, count, [...path, root])).toBeUndefined()
        if (path.length > 0) expect(rootFromPath(leafOf(index), index, count, path.slice(1))).not.toBe(root)
      }
    }
  })

  it('refuses an index outside the tree', () => {
    expect(rootFromPath(leafOf(0), 1, 1, [])).toBeUndefined()
    expect(rootFromPath(leafOf(0), 5, 4, [leafOf(1), leafOf(2)])).toBeUndefined()
  })
})
