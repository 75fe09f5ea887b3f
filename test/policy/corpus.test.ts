import { execFileSync } from 'node:child_process'
import {
  linkSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  realpathSync,
  renameSync,
  rmSync,
  symlinkSync,
  unlinkSync,
  writeFileSync,
} from 'node:fs'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { afterAll, describe, expect, it } from 'vitest'
import { answerPathLine } from '../../src/cli/check/path.ts'
import { answerUrlLine } from '../../src/cli/check/url.ts'

/** The corpora of addresses and paths, judged through the same functions as `ringfence check … --batch`. */

type Row = {
  readonly id: string
  readonly expect: string
  readonly accept?: readonly string[]
  readonly technique: string
  readonly why: string
  readonly never_connect?: readonly string[]
  readonly setup?: readonly Operation[]
  readonly policy?: object
}
type Operation = Readonly<Record<string, unknown>>

// Fields that corpus.py removes before it asks.
const LABELS = [
  'expect',
  'accept',
  'must_not',
  'technique',
  'why',
  'kind_label',
  'observed',
  'never_connect',
  'setup',
  'race',
  'split',
]
const BLOCK = [
  ...[
    '.ssh',
    '.aws',
    '.gnupg',
    '.kube',
    '.azure',
    '.docker',
    'secrets',
    'credentials',
    '.config/gcloud',
    '.env',
  ],
  ...[
    '.env.local',
    '.env.production',
    '.netrc',
    '.npmrc',
    '.pypirc',
    '.git-credentials',
    'id_rsa',
    'id_ed25519',
  ],
]
const PROTECT = [
  ...[
    '.git/hooks',
    '.git/config',
    '.git/modules',
    '.git/worktrees',
    '.claude',
    '.mcp.json',
    '.vscode',
    '.sandbox',
  ],
  '.envrc',
]

// No skip here: a checkout without the corpus must fail.
const rowsOf = (name: string): readonly Row[] =>
  readFileSync(join(import.meta.dirname, '..', 'corpus', name), 'utf8')
    .split('\n')
    .filter((line) => line.trim() !== '')
    .map((line) => JSON.parse(line) as Row)

const unlabelled = (row: Row): object =>
  Object.fromEntries(Object.entries(row).filter(([key]) => !LABELS.includes(key)))

describe.each([
  ['urls.jsonl', 150],
  ['fresh/urls.jsonl', 40],
] as const)('corpus of URLs: %s', (name, least) => {
  const rows = rowsOf(name)
  it('has enough rows', () => expect(rows.length).toBeGreaterThan(least))
  it.each(rows)('$id $technique: $why', async (row) => {
    const answer = await answerUrlLine(JSON.stringify(unlabelled(row)))
    expect(answer.id).toBe(row.id)
    expect(row.accept ?? [row.expect], answer.reason).toContain(answer.verdict)
    expect(answer.connects.filter((address) => row.never_connect?.includes(address))).toEqual([])
    if (process.env.RINGFENCE_FULL) expect(answer.us).toBeLessThan(50_000)
  })
})

describe.each([
  ['paths.jsonl', 120],
  ['fresh/paths.jsonl', 25],
] as const)('corpus of paths: %s', (name, least) => {
  const scratch = realpathSync(mkdtempSync(join(tmpdir(), 'rf-corpus-')))
  const open: { close(): unknown }[] = []
  afterAll(() => {
    for (const server of open) server.close()
    rmSync(scratch, { recursive: true, force: true })
  })
  const rows = rowsOf(name).filter((row) => row.expect !== 'no-escape')
  it('has enough rows', () => expect(rows.length).toBeGreaterThan(least))
  it.each(rows)('$id $technique: $why', (row) => {
    const root = join(scratch, row.id)
    for (const operation of [...BASE, ...(row.setup ?? [])]) build(placed(operation, root), open)
    const policy = {
      allowed: [`${root}/workspace`],
      blocked: BLOCK,
      protected: PROTECT,
      ...placed(row.policy ?? {}, root),
    }
    const answer = answerPathLine(JSON.stringify({ ...placed(unlabelled(row), root), policy }))
    expect(answer.id).toBe(row.id)
    expect(row.accept ?? [row.expect], answer.reason).toContain(answer.verdict)
    if (process.env.RINGFENCE_FULL) expect(answer.us).toBeLessThan(50_000)
  })
})

const BASE: readonly Operation[] = [
  { mkdir: '$R/workspace/src' },
  { file: '$R/workspace/src/a.ts' },
  { file: '$R/workspace/README.md' },
  { mkdir: '$R/outside/data' },
  { file: '$R/outside/secret.txt' },
  { mkdir: '$R/outside/.ssh' },
  { file: '$R/outside/.ssh/id_rsa' },
]

const placed = <T>(value: T, root: string): T => JSON.parse(JSON.stringify(value).replaceAll('$R', root)) as T

function build(operation: Operation, open: { close(): unknown }[]): void {
  const [[kind, value] = ['', '']] = Object.entries(operation)
  const path = value as string
  const [first, second] = value as [string, string]
  if (kind === 'mkdir') mkdirSync(path, { recursive: true })
  else if (kind === 'file') {
    mkdirSync(dirname(path), { recursive: true })
    writeFileSync(path, 'x', { flag: 'a' })
  } else if (kind === 'symlink') symlinkSync(first, second)
  else if (kind === 'hardlink') linkSync(first, second)
  else if (kind === 'rename') renameSync(first, second)
  else if (kind === 'unlink') unlinkSync(path)
  else if (kind === 'fifo') execFileSync('mkfifo', [path])
  else if (kind === 'socket') open.push(createServer().listen(path))
  else if (kind === 'device') execFileSync('mknod', (value as unknown[]).map(String))
  else throw new Error(`unknown operation ${kind}`)
}
