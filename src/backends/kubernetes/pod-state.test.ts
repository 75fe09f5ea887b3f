import { expect, test } from 'vitest'
import type { PodView } from './cluster-api.ts'
import { deletionProblem, endProblem, isRunning, startProblem } from './pod-state.ts'

/** Statuses as a cluster of version 1.20 sent them, shortened. */
const status = (of: PodView['status']): PodView => ({
  status: of ?? {},
  spec: { containers: [], nodeName: 'node2' },
})
const waiting = (reason: string, message = '') =>
  status({
    phase: 'Pending',
    containerStatuses: [
      {
        name: 'sandbox',
        image: 'x:1',
        imageID: '',
        ready: false,
        restartCount: 0,
        state: { waiting: { reason, message } },
      },
    ],
  })
const condition = (type: string, value: string, reason: string, message: string) =>
  status({ phase: 'Pending', conditions: [{ type, status: value, reason, message }] })

const terminated = (reason: string, exitCode: number) =>
  status({
    phase: 'Failed',
    containerStatuses: [
      {
        name: 'sandbox',
        image: '',
        imageID: '',
        ready: false,
        restartCount: 0,
        state: { terminated: { reason, exitCode } },
      },
    ],
  })

test.each([
  [
    condition('PodScheduled', 'False', 'Unschedulable', '0/2 nodes are available: 2 Insufficient memory.'),
    {
      kind: 'unschedulable',
      text: 'no node has room: 0/2 nodes are available: 2 Insufficient memory.',
      passing: true,
    },
  ],
  [
    waiting('ImagePullBackOff', 'Back-off'),
    { kind: 'image', text: 'the image x:1 cannot be used (ImagePullBackOff): Back-off' },
  ],
  [waiting('InvalidImageName'), expect.objectContaining({ kind: 'image' })],
  [waiting('CreateContainerError', 'no'), expect.objectContaining({ kind: 'refused' })],
  [waiting('ContainerCreating'), undefined],
  [waiting('ErrImagePull'), undefined],
  [status({ phase: 'Pending' }), undefined],
])('reports why a Pod does not run yet', (pod, expected) => {
  expect(startProblem(pod)).toEqual(expected)
})

test.each([
  [
    status({ phase: 'Failed', reason: 'Evicted', message: 'The node was low on resource: memory.' }),
    'evicted',
  ],
  [status({ phase: 'Failed', reason: 'DeadlineExceeded' }), 'deadline'],
  [status({ phase: 'Running', reason: 'NodeLost' }), 'node-lost'],
  [status({ phase: 'Failed', reason: 'Preempting' }), 'preempted'],
  [condition('DisruptionTarget', 'True', 'PreemptionByScheduler', ''), 'preempted'],
  [condition('DisruptionTarget', 'True', 'DeletionByTaintManager', ''), 'node-lost'],
  [condition('DisruptionTarget', 'True', 'EvictionByEvictionAPI', ''), 'evicted'],
  [terminated('OOMKilled', 137), 'oom'],
  [terminated('Error', 2), 'ended'],
  [status({ phase: 'Running' }), undefined],
])('reports why a Pod ended', (pod, kind) => {
  expect(endProblem(pod)?.kind).toBe(kind)
})

test('reports why a Pod was deleted', () => {
  const pod = status({ phase: 'Running' })
  const said = (reason: string, message = '') => [{ reason, message, involvedObject: {}, metadata: {} }]
  expect(deletionProblem(pod, said('Preempted', 'by x')).text).toBe('preempted: by x')
  expect(deletionProblem(pod, said('TaintManagerEviction')).text).toBe('node lost: node2 does not answer')
  expect(deletionProblem(pod, []).kind).toBe('evicted')
})

test('a Pod runs when both of its containers run', () => {
  const one = (name: string, running: boolean) => ({
    name,
    image: '',
    imageID: '',
    ready: running,
    restartCount: 0,
    state: running ? { running: {} } : { waiting: {} },
  })
  const pod = (both: boolean) =>
    status({
      phase: 'Running',
      podIP: '10.0.0.1',
      containerStatuses: [one('channel', true), one('sandbox', both)],
    })
  expect([isRunning(pod(true)), isRunning(pod(false)), isRunning({})]).toEqual([true, false, false])
})
