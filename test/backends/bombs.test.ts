import { copyFileSync, readdirSync, rmSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { Sandbox } from '../../src/index.ts'
import type { Limits } from '../../src/model/spec.ts'
import { packageRoot } from '../conformance/world.ts'
import { FULL, makeTestHost, type TestHost, text } from './persistent-sandbox.ts'

/** A command that exhausts a resource, and a neighbouring sandbox that must not be affected. */

setFlagsFromString('--expose-gc')
const gc = runInNewContext('gc') as () => void

/** Memory that is kept. The resident size says less: it also counts garbage and what the allocator keeps. */
function keptMemory(): number {
  gc()
  const { heapUsed, arrayBuffers } = process.memoryUsage()
  return heapUsed + arrayBuffers
}

let testHost: TestHost
let other: TestHost
let neighbour: Sandbox
beforeAll(async () => {
  testHost = makeTestHost('bombs')
  copyFileSync(join(packageRoot(), 'dist', 'guest', 'ringfence-probe'), join(testHost.workspace, 'probe'))
  other = makeTestHost('neighbour')
  neighbour = await other.open()
  await neighbour.exec(['true'])
})
afterAll(async () => {
  await neighbour.close()
  other.drop()
  testHost.drop()
})

type Bomb = {
  readonly name: string
  readonly limits: Limits
  readonly lines: string
  /** The limit that the outcome or a violation must name. */
  readonly named: string | undefined
}

const BOMBS: readonly Bomb[] = [
  {
    name: 'forks',
    limits: { pids: 64, wallMs: 3000 },
    lines: 'f() { f | f & }; f; sleep 2',
    named: 'limit.pids',
  },
  {
    name: 'memory',
    limits: { memoryMb: 96, wallMs: 10_000 },
    lines: './probe memory 800; ./probe memory 800',
    named: 'limit.memory',
  },
  {
    name: 'disk',
    limits: { diskMb: 24, wallMs: 10_000 },
    lines: 'for i in 1 2 3 4 5 6; do head -c 40M /dev/zero > fill$i; done',
    named: 'limit.disk',
  },
  {
    name: 'a memory file system',
    limits: { memoryMb: 96, wallMs: 10_000 },
    lines: 'head -c 900M /dev/zero > /dev/shm/fill; head -c 900M /dev/zero > /tmp/fill; sleep 1',
    named: 'limit.memory',
  },
  {
    name: 'inodes',
    limits: { diskMb: 8, wallMs: 20_000 },
    lines: 'mkdir many; for i in $(seq 20000); do : > many/$i || exit 1; done',
    named: 'limit.disk',
  },
  {
    name: 'descriptors',
    limits: { wallMs: 10_000 },
    lines: `python3 -c '
import os
held=[]
try:
  while True: held.append(os.open("/dev/null",0))
except OSError as e: print(e.strerror)'`,
    named: undefined,
  },
  {
    name: 'output',
    limits: { outputBytes: 1_000_000, wallMs: 10_000 },
    lines: 'cat /dev/zero',
    named: 'limit.output',
  },
  {
    name: 'one line of 64 MiB',
    limits: { outputBytes: 16_000_000, wallMs: 20_000 },
    lines: 'head -c 67108864 /dev/zero | tr "\\0" x',
    named: 'limit.output',
  },
  {
    name: 'the dead',
    limits: { pids: 100, wallMs: 3000 },
    lines: `python3 -c '
import os,time
while True:
  if os.fork()==0: os._exit(0)'; sleep 1`,
    named: 'limit.pids',
  },
  {
    // The default limit, which no cgroup enforces.
    name: 'threads of one process',
    limits: { wallMs: 10_000 },
    lines: `python3 -c '
import threading,time
threading.stack_size(65536)
try:
  for _ in range(1500): threading.Thread(target=time.sleep,args=(2,)).start()
except RuntimeError: print("no more")
'`,
    // For other users than root the kernel refuses them.
    named: process.getuid?.() === 0 ? 'limit.pids' : undefined,
  },
]

/** How long each of the neighbour's commands takes, one after the other, while `work` runs. */
async function neighbourly(work: Promise<unknown> | undefined, least: number): Promise<readonly number[]> {
  let over = work === undefined
  void work?.then(() => {
    over = true
  })
  const times: number[] = []
  while (!over || times.length < least) {
    const began = performance.now()
    const { stdout } = await neighbour.exec(['echo', 'well'])
    times.push(performance.now() - began)
    expect(text(stdout)).toBe('well\n')
  }
  return times
}

const p99 = (times: readonly number[]): number =>
  times.toSorted((a, b) => a - b)[Math.floor(times.length * 0.99)] as number

/** Repeats the bomb until the returned function is called: a single bomb may end before it has an effect. */
function keepBombing(first: Promise<unknown>, again: () => Promise<unknown>): () => Promise<void> {
  let over = false
  const all = (async () => {
    await first
    // A bomb that ends its own sandbox cannot be repeated.
    while (!over) await again().catch(() => (over = true))
  })()
  return () => {
    over = true
    return all
  }
}

/** Measurements with and without the bomb alternate, because other load on the machine varies. */
const [ROUNDS, LEAST] = FULL ? [8, 200] : [1, 3]

/** Runs the bomb in a sandbox, and commands of the neighbour at the same time. */
async function besideBomb(bomb: Bomb) {
  await using sandbox = await testHost.open({ limits: bomb.limits })
  const light = () => sandbox.exec(testHost.script('bomb.sh', bomb.lines))
  const running = light()
  const stop = FULL ? keepBombing(running, light) : async () => {}
  const times = await neighbourly(running, LEAST)
  await stop()
  expect(leftBehind(), 'what was written stays near the limit').toBeLessThan(100 * 1024 * 1024)
  return { times, ...(await running) }
}

/** Returns how much the bomb wrote, and removes it, so that every bomb starts with the same workspace. */
function leftBehind(): number {
  const left = readdirSync(testHost.workspace).filter((name) => /^(fill|many)/.test(name))
  const size = left.reduce((sum, name) => sum + statSync(join(testHost.workspace, name)).size, 0)
  for (const name of left) rmSync(join(testHost.workspace, name), { recursive: true })
  return size
}

describe('resource bombs', () => {
  test.each(BOMBS)(
    '$name: reports the limit that was hit, and a neighbouring sandbox keeps working',
    { timeout: 240_000 },
    async (bomb) => {
      const [idle, beside]: [number[], number[]] = [[], []]
      let before = 0
      for (let round = 0; round < ROUNDS; round++) {
        idle.push(...(await neighbourly(undefined, LEAST)))
        // Only after the neighbour's first commands have allocated their memory.
        before ||= keptMemory()
        const { times, outcome, violations } = await besideBomb(bomb)
        beside.push(...times)
        const named = [
          ...violations.map(({ guarantee }) => guarantee as string),
          ...(outcome.kind === 'stopped' ? [`limit.${outcome.limit}`] : []),
        ]
        if (bomb.named) expect(named).toContain(bomb.named)
        else expect(outcome).toEqual({ kind: 'exited', code: 0 })
      }
      const grown = keptMemory() - before
      if (FULL) {
        const times = p99(beside) / p99(idle)
        process.stdout.write(
          `${times <= 2 ? 'kept' : 'MISSED'} ${bomb.name}: neighbour p99 ${p99(beside).toFixed(1)} ms, idle ${p99(idle).toFixed(1)} ms, ${times.toFixed(2)} × (promised 2), memory ${(grown / 1048576).toFixed(0)} MiB\n`,
        )
        expect(times).toBeLessThan(8)
      }
      expect(grown).toBeLessThan(64 * 1024 * 1024)
    },
  )
})
