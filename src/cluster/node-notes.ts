import type { Doctor } from '../model/api/host.ts'
import type { NodeRow } from '../store/nodes.ts'

/** What `doctor` says about a cluster; undefined: its database does not answer. */
export function nodeNotes(all: readonly NodeRow[] | undefined): Doctor['notes'] {
  if (!all) return [{ id: 'cluster', weight: 'stops', text: 'the database of the cluster does not answer' }]
  const up = all.filter(({ state }) => state === 'up')
  const versions = [...new Set(up.map(({ version }) => version))].sort()
  const lost = all.filter(({ state }) => state === 'lost')
  const failing = up.filter(({ facts }) => facts.failures > 0)
  return [
    { id: 'cluster', weight: 'tells', text: `a cluster of ${up.length} nodes that run: ${namesOf(up)}` },
    ...lost.map((node) => ({
      id: `node ${node.id}`,
      weight: 'weakens' as const,
      text: `node ${node.name} is lost: its lease has ended`,
      fix: `start it again, or forget it: ringfence node rm ${node.id}`,
    })),
    ...failing.map((node) => ({
      id: `failing ${node.id}`,
      weight: 'weakens' as const,
      text: `node ${node.name} failed to start ${node.facts.failures} sandboxes in a row`,
      fix: 'see its log, and `ringfence doctor` on that machine',
    })),
    ...(versions.length > 1
      ? [
          {
            id: 'versions',
            weight: 'tells' as const,
            text: `nodes have different versions: ${versions.join(', ')}`,
          },
        ]
      : []),
  ]
}

const namesOf = (nodes: readonly NodeRow[]): string => nodes.map(({ name }) => name).join(', ') || 'none'
