import { expect, test } from 'vitest'
import type { NodeRow } from '../store/nodes.ts'
import { nodeNotes } from './node-notes.ts'

const node = (name: string, more: Partial<Pick<NodeRow, 'state' | 'version'>> = {}, failures = 0): NodeRow =>
  ({ id: name, name, state: 'up', version: '1', facts: { failures }, ...more }) as NodeRow

test('doctor reports the state of nodes', () => {
  expect(nodeNotes(undefined)).toMatchObject([{ weight: 'stops' }])
  expect(nodeNotes([node('a'), node('b')]).map(({ text }) => text)).toEqual([
    'a cluster of 2 nodes that run: a, b',
  ])
  const notes = nodeNotes([node('a', { version: '2' }), node('b', { state: 'lost' }), node('c', {}, 3)])
  expect(notes.map(({ id, weight }) => `${id}: ${weight}`)).toEqual([
    'cluster: tells',
    'node b: weakens',
    'failing c: weakens',
    'versions: tells',
  ])
})
