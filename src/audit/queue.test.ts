import { setTimeout as sleep } from 'node:timers/promises'
import { expect, test } from 'vitest'
import type { Event } from '../model/event.ts'
import type { Entry } from './batch.ts'
import { EntryQueue } from './queue.ts'

const event = (n: number): Event => ({ event: 'Connection', port: n })
const portOf = (entry: Entry): string =>
  entry.kind === 'event' ? (/\d+/.exec(entry.members.get('port') ?? '')?.[0] ?? '') : 'seal'

/** A queue whose commits complete when the test says so; each commit is the list of its records. */
function queueOf() {
  const commits: string[][] = []
  const ends: ((error?: Error) => void)[] = []
  const awaited: boolean[] = []
  const queue = new EntryQueue(
    (take, isAwaited) =>
      new Promise((resolve, reject) => {
        commits.push(take().map(portOf))
        awaited.push(isAwaited())
        ends.push((error) => (error ? reject(error) : resolve()))
      }),
    () => new Date(0),
  )
  return { queue, commits, awaited, ends }
}

const until = async (holds: () => boolean): Promise<void> => {
  while (!holds()) await sleep(1)
}

test('delayed records share the commit of the next record, in order', async () => {
  const { queue, commits, ends } = queueOf()
  const all = [queue.append(event(1), 'soon'), queue.append(event(2), 'soon'), queue.append(event(3))]
  await until(() => ends.length === 1)
  expect(commits).toEqual([['1', '2', '3']])
  ends[0]?.()
  await Promise.all(all)
})

test('delayed records are written without a next record, also after a commit that took some early', async () => {
  const { queue, commits, awaited, ends } = queueOf()
  const first = queue.append(event(1))
  await until(() => ends.length === 1)
  const second = queue.append(event(2), 'soon')
  const beside = queue.append(event(3))
  ends[0]?.()
  await until(() => ends.length === 2)
  ends[1]?.()
  await Promise.all([first, second, beside])
  await sleep(60)
  const third = queue.append(event(4), 'soon')
  await until(() => ends.length === 3)
  ends[2]?.()
  await third
  expect(commits).toEqual([['1'], ['2', '3'], ['4']])
  expect(awaited).toEqual([true, true, false])
})

test('closing writes delayed records, and a failed commit rejects each of its records', async () => {
  const { queue, commits, ends } = queueOf()
  const lost = queue.append(event(1), 'soon')
  const closed = queue.close()
  await until(() => ends.length === 1)
  ends[0]?.(new Error('disk full'))
  await expect(lost).rejects.toThrow('disk full')
  await expect(closed).rejects.toThrow('disk full')
  expect(commits).toEqual([['1', 'seal']])
})

test.each([
  ['fails without a message', () => Promise.reject(undefined)],
  ['commits no record', () => Promise.resolve()],
])('a commit that %s is never taken for a record', async (_, commit) => {
  const queue = new EntryQueue(commit, () => new Date(0))
  const told = await queue.append(event(1)).then(
    () => 'recorded',
    () => 'refused',
  )
  expect(told).toBe('refused')
})
