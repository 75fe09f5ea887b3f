import { execFileSync, spawn } from 'node:child_process'
import {
  closeSync,
  constants,
  existsSync,
  fstatSync,
  linkSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  realpathSync,
  renameSync,
  rmSync,
  symlinkSync,
  unlinkSync,
  writeFileSync,
  writeSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { afterAll, describe, expect, it } from 'vitest'
import { observePath, type PathObservation } from '../../src/host/files/walk.ts'
import { O_PATH, openChecked } from '../../src/host/files/walk-open.ts'
import { judgePath, type PathOp, type PathPolicy } from '../../src/policy/paths/paths.ts'

/**
 * The race cases of the corpus: the checked file is the one that is used, also if the tree changes in between. Each case runs once
 * with the swap exactly between check and use, then many times while another process keeps changing the tree.
 */
type Operation = Readonly<Record<string, string | readonly [string, string]>>
type RaceCase = {
  readonly id: string
  readonly op: PathOp
  readonly path: string
  readonly why: string
  readonly setup: readonly Operation[]
  readonly expect: string
  readonly race: {
    readonly between_check_and_use: readonly Operation[]
    readonly must_not_touch: readonly string[]
  }
}

const TRIES = process.env.RINGFENCE_FULL ? 10_000 : 300
const scratch = realpathSync(mkdtempSync(join(tmpdir(), 'rf-race-')))
afterAll(() => rmSync(scratch, { recursive: true, force: true }))

const cases = readFileSync(join(import.meta.dirname, '../corpus/paths.jsonl'), 'utf8')
  .split('\n')
  .filter((line) => line !== '')
  .map((line) => JSON.parse(line) as RaceCase)
  .filter((row) => row.expect === 'no-escape')

// Beyond the corpus: the same swap for a write and for a mount.
const ours: readonly RaceCase[] = [
  ...(['write', 'mount-rw'] as const).map((op) => ({
    id: `ours-${op}`,
    op,
    path: '$R/workspace/src/a.ts',
    why: `directory swapped for a link under a ${op}`,
    setup: [{ file: '$R/outside/a.ts' }],
    expect: 'no-escape',
    race: {
      between_check_and_use: [
        { rename: ['$R/workspace/src', '$R/workspace/src.old'] as const },
        { symlink: ['$R/outside', '$R/workspace/src'] as const },
      ],
      must_not_touch: ['$R/outside'],
    },
  })),
]

const placed = <T>(value: T, root: string): T => JSON.parse(JSON.stringify(value).replaceAll('$R', root)) as T

function plant(path: string): void {
  mkdirSync(dirname(path), { recursive: true })
  writeFileSync(path, 'x', { flag: 'a' })
}

function apply(operation: Operation): void {
  for (const [name, value] of Object.entries(operation)) {
    const [first, second] = (typeof value === 'string' ? [value, ''] : value) as [string, string]
    if (name === 'mkdir') mkdirSync(first, { recursive: true })
    else if (name === 'file') plant(first)
    else if (name === 'symlink') symlinkSync(first, second)
    else if (name === 'rename') renameSync(first, second)
    else if (name === 'unlink') unlinkSync(first)
    else if (name === 'hardlink') linkSync(first, second)
    else if (name === 'fifo') execFileSync('mkfifo', [first])
    else throw new Error(`unknown operation ${name}`)
  }
}

function build(row: RaceCase, name: string): { readonly root: string; readonly row: RaceCase } {
  const root = join(scratch, name)
  const here = placed(row, root)
  for (const dir of ['workspace/src', 'outside/data', 'outside/.ssh'])
    mkdirSync(join(root, dir), { recursive: true })
  for (const file of ['workspace/src/a.ts', 'workspace/README.md']) writeFileSync(join(root, file), 'x')
  for (const file of ['outside/secret.txt', 'outside/.ssh/id_rsa', 'outside/f'])
    writeFileSync(join(root, file), 'SECRET')
  for (const operation of here.setup) apply(operation)
  return { root, row: here }
}

const FLAGS: Partial<Record<PathOp, number>> = {
  read: constants.O_RDONLY,
  write: constants.O_WRONLY | constants.O_TRUNC,
  create: constants.O_WRONLY | constants.O_CREAT,
  'mount-ro': O_PATH,
  'mount-rw': O_PATH,
}

/** Observes and judges a path; `undefined` if the policy denies it. */
function judged(row: RaceCase, root: string): PathObservation | undefined {
  const policy: PathPolicy = {
    allowed: [{ path: join(root, 'workspace'), mode: 'rw' }],
    blocked: [],
    protected: [],
  }
  const path = observePath(row.path)
  const facts = { path, roots: [observePath(join(root, 'workspace'))] }
  return judgePath(policy, { path: row.path, op: row.op }, facts).verdict === 'allow' ? path : undefined
}

/** Uses the judged path as the operation says, and returns whether that reached anything outside. */
function use(
  row: RaceCase,
  observation: PathObservation,
  forbidden: ReadonlySet<string>,
): 'refused' | 'inside' | 'escaped' {
  let fd: number
  try {
    fd = openChecked(observation, FLAGS[row.op] ?? constants.O_RDONLY)
  } catch {
    return 'refused'
  }
  try {
    const outside = forbidden.has(String(fstatSync(fd, { bigint: true }).ino))
    if (row.op === 'read' && readFileSync(fd, 'utf8').includes('SECRET')) return 'escaped'
    if (row.op === 'write' || row.op === 'create') writeSync(fd, 'w')
    return outside ? 'escaped' : 'inside'
  } finally {
    closeSync(fd)
  }
}

/** Every inode and every byte below the forbidden directories. */
function outsideOf(row: RaceCase): { readonly inodes: ReadonlySet<string>; readonly content: string } {
  const inodes = new Set<string>()
  const content: string[] = []
  const visit = (path: string): void => {
    const seen = observePath(path)
    if (seen.state !== 'exists') return
    inodes.add(seen.thing.ino)
    if (seen.thing.kind === 'dir') for (const name of readdirSync(path).sort()) visit(join(path, name))
    else content.push(`${path}=${readFileSync(path, 'utf8')}`)
  }
  for (const path of row.race.must_not_touch) visit(path)
  return { inodes, content: content.join('\n') }
}

it('the corpus has at least six race cases', () => expect(cases.length).toBeGreaterThanOrEqual(6))

it.each([
  ['P0029', 'r'],
  ['P0038', 'w'],
  ['P0095', 'w'],
  ['ours-write', 'r+'],
])('control: %s escapes when the checked path is opened by name', (id, flags) => {
  const found = [...cases, ...ours].find((row) => row.id === id)
  if (found === undefined) throw new Error(`no case ${id}`)
  const { root, row } = build(found, `${id}-control`)
  expect(judged(row, root)).toBeDefined()
  for (const operation of row.race.between_check_and_use) apply(operation)
  const fd = openSync(row.path, flags)
  const opened = readlinkSync(`/proc/self/fd/${fd}`)
  closeSync(fd)
  expect(opened.startsWith(`${root}/outside/`)).toBe(true)
})

describe.each([...cases, ...ours])('$id $why', (corpusRow) => {
  it('stays inside when the path is swapped between check and use', () => {
    const { root, row } = build(corpusRow, `${corpusRow.id}-once`)
    const observation = judged(row, root)
    expect(observation).toBeDefined()
    for (const operation of row.race.between_check_and_use) apply(operation)
    const before = outsideOf(row)
    expect(use(row, observation as PathObservation, before.inodes)).not.toBe('escaped')
    expect(outsideOf(row).content).toBe(before.content)
  })

  it(`stays inside in ${TRIES} tries while another process keeps swapping the path`, async () => {
    const { root, row } = build(corpusRow, `${corpusRow.id}-flip`)
    for (const operation of row.race.between_check_and_use) if ('file' in operation) apply(operation)
    const before = outsideOf(row)
    const stop = await flip(row, root)
    const tally = { denied: 0, refused: 0, inside: 0, escaped: 0 }
    for (let turn = 0; turn < TRIES; turn++) {
      const observation = judged(row, root)
      tally[observation === undefined ? 'denied' : use(row, observation, before.inodes)]++
      if (row.op === 'create') clear(row, root)
    }
    await stop()
    expect(tally.escaped, JSON.stringify(tally)).toBe(0)
    // If the policy denied every try, the test says nothing about the use.
    if (process.env.RINGFENCE_FULL) expect(tally.refused + tally.inside).toBeGreaterThan(0)
    expect(outsideOf(row).content).toBe(before.content)
  })
})

/** Removes what a try created, never through a symlink, so that the next try starts without it. */
function clear(row: RaceCase, root: string): void {
  const top = row.path.slice(`${root}/workspace/`.length).split('/')[0] as string
  const path = join(root, 'workspace', top)
  try {
    readlinkSync(path)
  } catch {
    rmSync(path, { recursive: true, force: true })
  }
}

async function flip(row: RaceCase, root: string): Promise<() => Promise<void>> {
  const pipe = join(root, 'pipe')
  if (!existsSync(pipe)) execFileSync('mkfifo', [pipe])
  const links = row.setup.flatMap((operation) =>
    'symlink' in operation ? [[...operation.symlink].reverse()] : [],
  )
  const argument = JSON.stringify({ operations: row.race.between_check_and_use, pipe })
  const child = spawn(
    process.execPath,
    [join(import.meta.dirname, 'race-flip.mjs'), argument, JSON.stringify(links)],
    {
      stdio: ['pipe', 'pipe', 'inherit'],
    },
  )
  await new Promise((resolve) => child.stdout.once('data', resolve))
  return () =>
    new Promise((resolve) => {
      child.once('exit', () => resolve())
      child.stdin.end()
    })
}
