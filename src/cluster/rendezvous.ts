import { createHash } from 'node:crypto'

/**
 * The node that some work belongs to: every node that sees the same nodes names the same one, and if a node comes or goes, only
 * its own share of the work moves.
 */
export function nodeFor<N extends { readonly id: string }>(name: string, nodes: readonly N[]): N | undefined {
  const weight = ({ id }: N): string => createHash('sha256').update(`${id} ${name}`).digest('hex')
  const [best] = nodes
    .map((node) => ({ node, weight: weight(node) }))
    .sort((a, b) => (a.weight < b.weight ? -1 : 1))
  return best?.node
}
