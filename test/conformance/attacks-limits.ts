import { readdirSync, statSync } from 'node:fs'
import { join } from 'node:path'
import type { Guarantee } from '../../src/model/guarantee.ts'
import { type Attack, says, sleep, stdout } from './attack.ts'
import { contentOf } from './world.ts'

/** What the children of a sandbox leave: a daemon that keeps writing after the command has ended. */
export const CLEANUP: readonly Attack[] = [
  {
    name: 'leave a daemon behind',
    script: () =>
      `setsid bash -c 'trap "" TERM HUP; for i in $(seq 20); do date +%N > beat; sleep 0.1; done' > /dev/null 2>&1 < /dev/null & sleep 0.3`,
    succeeded: async (_, __, workspace) => {
      const first = contentOf(join(workspace, 'beat'))
      await sleep(400)
      return contentOf(join(workspace, 'beat')) !== first
    },
  },
  {
    name: 'survive the time limit in a session of its own',
    limits: { wallMs: 400 },
    script: () =>
      `setsid bash -c 'trap "" TERM HUP; for i in $(seq 30); do date +%N > beat; sleep 0.1; done' > /dev/null 2>&1 < /dev/null & sleep 30`,
    succeeded: async (result, __, workspace) => {
      const first = contentOf(join(workspace, 'beat'))
      await sleep(400)
      return result.outcome.kind !== 'stopped' || contentOf(join(workspace, 'beat')) !== first
    },
  },
]

const megabytesIn = (dir: string): number =>
  readdirSync(dir, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .reduce((sum, entry) => sum + statSync(join(entry.parentPath, entry.name)).size, 0) / 1048576

/** Using more than the limits allow. */
export const LIMITS = {
  'limit.wall': [
    {
      name: 'run past the time limit, ignoring the request to end',
      limits: { wallMs: 300 },
      script: () =>
        'trap "" TERM; end=$((SECONDS+6)); while [ $SECONDS -lt $end ]; do sleep 0.1; done; echo past',
      succeeded: says('past'),
    },
    {
      name: 'stop itself so that no signal is heard',
      limits: { wallMs: 300 },
      script: () => '( sleep 1.5; kill -CONT $$ ) & kill -STOP $$; sleep 1; echo past',
      succeeded: says('past'),
    },
  ],
  'limit.idle': [
    {
      name: 'say nothing for long',
      limits: { idleMs: 300 },
      script: () => 'echo a; sleep 1.5; echo past',
      succeeded: says('past'),
    },
  ],
  'limit.memory': [
    {
      name: 'use more memory, in several processes',
      limits: { memoryMb: 100 },
      script: ({ probe }) => `${probe} memory 320`,
      succeeded: says('yes'),
    },
    {
      name: 'use more memory in a memory file system',
      limits: { memoryMb: 100 },
      script: () =>
        'head -c 300M /dev/zero > /dev/shm/rf-fill && sleep 0.5 && echo yes; rm -f /dev/shm/rf-fill',
      succeeded: says('yes'),
    },
  ],
  'limit.cpu': [
    {
      name: 'use more processor time',
      // Far enough apart that a busy machine, too, tells one from the other.
      limits: { cpus: 0.05 },
      script: ({ probe }) => `${probe} spin 2000`,
      succeeded: (result) => Number(stdout(result)) > 220,
    },
  ],
  'limit.pids': [
    {
      name: 'start more processes',
      limits: { pids: 40 },
      script: ({ probe }) => `${probe} fork 200`,
      succeeded: (result) => Number(stdout(result)) > 40,
    },
  ],
  'limit.disk': [
    {
      name: 'write one large file',
      limits: { diskMb: 20 },
      script: () => 'head -c 80M /dev/zero > big',
      succeeded: (_, __, workspace) => megabytesIn(workspace) > 40,
    },
    {
      name: 'write many files',
      limits: { diskMb: 20 },
      script: () => 'for i in $(seq 120); do head -c 1M /dev/zero > f$i; sleep 0.01; done',
      succeeded: (_, __, workspace) => megabytesIn(workspace) > 60,
    },
    {
      name: 'fill the private /tmp',
      limits: { diskMb: 20 },
      script: () => 'd=$(mktemp -d); head -c 60M /dev/zero > $d/fill; stat -c %s $d/fill; rm -rf $d',
      succeeded: (result) => Number(stdout(result)) > 41943040,
    },
  ],
  'limit.output': [
    {
      name: 'write more than the limit',
      limits: { outputBytes: 100_000 },
      script: () => 'head -c 3000000 /dev/zero',
      succeeded: (result) => result.stdout.length > 100_000,
    },
  ],
} satisfies Partial<Record<Guarantee, readonly Attack[]>>
