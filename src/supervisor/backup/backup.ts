import {
  cpSync,
  existsSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  rmSync,
  statSync,
  truncateSync,
} from 'node:fs'
import { join } from 'node:path'
import { loadVerifyKey, parseAnchors, readAnchors } from '../../audit/anchor.ts'
import { canonical } from '../../audit/canonical.ts'
import { makeDirs, pathsOf, replaceFile, segmentPath, segmentsIn, sizeOf } from '../../audit/files.ts'
import { trailLocation } from '../../audit/open-store-trail.ts'
import { trailSource } from '../../audit/source.ts'
import type { Verdict, VerifyOptions } from '../../audit/verify.ts'
import { SandboxError } from '../../model/errors.ts'
import { copyPostgres, copySqlite } from '../../store/copy-store.ts'
import { openStore } from '../../store/open.ts'
import { writeArchive } from './archive.ts'

/** What to back up, and where to. */
export type BackupOptions = {
  readonly stateDir: string
  /** Where the records are if they are not in the state directory. */
  readonly databaseUrl: string
  readonly file: string
  readonly version: string
}

/** What a backup contains. */
export type BackupReport = {
  readonly file: string
  readonly bytes: number
  readonly files: number
  /** Records of the audit log, all of them verified. */
  readonly records: number
  /** What the state directory contains besides: files of volumes, snapshots and sandboxes, and what can be built again. */
  readonly left_out: readonly string[]
}

/** Besides the audit log and the store. */
const COPIED = [
  'keys',
  'mcp',
  'memory',
  'skills',
  'instance.json',
  'sandbox-tokens.key',
  'webhook-secrets.key',
]
const LOG = ['anchor', 'trail']
/** Without meaning for another start or another machine. */
const PASSING = /^(run|probes|proofs|server\.lock.*|ringfence\.db.*|.*\.tmp)$/
const TRIES = 5
const PAUSE_MS = 50

/** Copies the records, the audit log and the keys of a state directory to one file, and verifies the copy. A server may run. */
export async function backup({ stateDir, databaseUrl, file, version }: BackupOptions): Promise<BackupReport> {
  if (loadVerifyKey(stateDir) === undefined)
    throw new SandboxError('wrong-state', `there is nothing to back up in \`${stateDir}\``, {
      hint: 'RINGFENCE_HOME names the state directory; run it as the user who runs the server',
    })
  if (existsSync(file))
    throw new SandboxError('file-exists', `\`${file}\` exists already`, { hint: 'name a new file' })
  const stage = mkdtempSync(`${file}.files-`)
  try {
    const records = await copyVerified(stateDir, databaseUrl, stage)
    const about = { version, created_at: new Date().toISOString(), records }
    const { files } = await writeArchive(stage, file, about)
    const { size } = statSync(file)
    return { file, bytes: size, files: files.length, records, left_out: leftOut(stateDir) }
  } finally {
    rmSync(stage, { recursive: true, force: true })
  }
}

/** Verifies the audit log of a state directory whose records are in its own files. */
export async function verifyHere(stateDir: string, options: VerifyOptions = {}): Promise<Verdict> {
  const trail = await trailSource(stateDir, () => openStore({ stateDir }))
  try {
    return await trail.verify(options)
  } finally {
    await trail.close()
  }
}

/** Again if a writer was in the middle of a record. */
async function copyVerified(stateDir: string, databaseUrl: string, stage: string): Promise<number> {
  for (let attempt = 1; ; attempt++) {
    await copyState(stateDir, databaseUrl, stage)
    const verdict = await verifyHere(stage)
    if (verdict.ok) return verdict.records
    if (attempt === TRIES)
      throw new SandboxError(
        'trail-unwritable',
        `the audit log does not verify: record ${verdict.seq}: ${verdict.problem}`,
        {
          hint: 'nothing was written; run `ringfence audit verify` and keep the state directory as evidence',
        },
      )
    for (const name of readdirSync(stage)) rmSync(join(stage, name), { recursive: true })
    await new Promise((resolve) => setTimeout(resolve, PAUSE_MS))
  }
}

async function copyState(stateDir: string, databaseUrl: string, stage: string): Promise<void> {
  makeDirs(stage)
  for (const name of COPIED) copy(stateDir, stage, name)
  // INVARIANT: the head before the records, so that the copy of the head never covers more than the copied records.
  const { head, leaves } = pathsOf(stateDir)
  for (const path of [head, leaves]) copy(stateDir, stage, path.slice(stateDir.length + 1))
  copy(stateDir, stage, 'trail')
  const location = trailLocation(stateDir)
  if (location === undefined) trim(stage)
  else if (location.kind === 'sqlite') await copySqlite(stateDir, stage)
  else if (databaseUrl !== '') await copyPostgres(databaseUrl, stage)
  else
    throw new SandboxError('invalid-config', 'the records are in PostgreSQL, and no database is named', {
      hint: 'set RINGFENCE_DATABASE_URL, `database_url` in [server] or --database-url',
    })
  if (location) replaceFile(pathsOf(stage).store, `${canonical({ kind: 'sqlite' })}\n`)
  else if (existsSync(join(stateDir, 'ringfence.db'))) await copySqlite(stateDir, stage)
}

function copy(from: string, to: string, name: string): void {
  const source = join(from, name)
  if (!existsSync(source)) return
  mkdirSync(to, { recursive: true, mode: 0o700 })
  const isPlain = (path: string): boolean => {
    const found = lstatSync(path, { throwIfNoEntry: false })
    return found !== undefined && (found.isFile() || found.isDirectory()) && !path.endsWith('.tmp')
  }
  cpSync(source, join(to, name), { recursive: true, preserveTimestamps: true, filter: isPlain })
}

/** Removes what was appended after the head was copied: nothing covers it. */
function trim(stage: string): void {
  const key = loadVerifyKey(stage)
  const anchored = key && parseAnchors(readAnchors(stage) ?? '', key, 'skipped')
  if (!anchored || typeof anchored === 'string') return
  const { head } = anchored.anchor
  for (const segment of segmentsIn(stage)) {
    const path = segmentPath(stage, segment)
    if (segment > head.segment) rmSync(path)
    else if (segment === head.segment && (sizeOf(path) ?? 0) > head.offset) truncateSync(path, head.offset)
  }
  const { leaves } = pathsOf(stage)
  if ((sizeOf(leaves) ?? 0) > head.count * 32) truncateSync(leaves, head.count * 32)
}

function leftOut(stateDir: string): string[] {
  const known = new Set([...COPIED, ...LOG])
  return readdirSync(stateDir, { withFileTypes: true })
    .filter(({ name }) => !known.has(name) && !PASSING.test(name))
    .filter((entry) => !entry.isDirectory() || readdirSync(join(stateDir, entry.name)).length > 0)
    .map(({ name }) => name)
    .sort()
}
