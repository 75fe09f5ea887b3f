import { createHash } from 'node:crypto'
import {
  chmodSync,
  closeSync,
  constants,
  fstatSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readFileSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { basename, dirname, join, resolve } from 'node:path'
import { SandboxError } from '../model/errors.ts'
import { type Manifest, parseManifest } from './manifest.ts'
import { starterOf } from './starter.ts'

/** One file of a skill, by its path inside the skill. */
type SkillFile = { readonly path: string; readonly bytes: Uint8Array }

/** A skill, read once: inspection, hash and run all use the same bytes. */
export type SkillPackage = {
  readonly dir: string
  readonly manifest: Manifest
  /** SHA-256 over all paths and contents. */
  readonly hash: string
  readonly files: readonly SkillFile[]
  readonly entry: SkillFile
  /** The text of the signature, if there is one. It signs the hash, so it is no part of it. */
  readonly signature: string | undefined
}

/** The file that holds the signature of a skill. */
export const SIGNATURE_FILE = 'skill.sig'

const MAX_FILES = 2000
const MAX_BYTES = 64 * 1024 * 1024
const SKIPPED = ['.git']

const broken = (message: string, hint = 'see docs/skills.md'): SandboxError =>
  new SandboxError('invalid-input', message, { hint })

/** Writes the files of a new skill into a directory that is empty or does not exist yet; returns their names. */
export function createSkill(
  dir: string,
  language: string,
): { readonly files: readonly string[]; readonly build: string | undefined } {
  const name = basename(resolve(dir))
  if (!/^[A-Za-z0-9][A-Za-z0-9._-]*$/.test(name) || name.length > 64)
    throw broken(`\`${name}\` cannot be the name of a skill`, 'letters, digits, dots and hyphens, at most 64')
  const { files, build } = starterOf(name, language)
  mkdirSync(dir, { recursive: true })
  if (readdirSync(dir).length > 0) throw broken(`\`${dir}\` is not empty`, 'name a new directory')
  for (const [file, text] of Object.entries(files)) writeFileSync(join(dir, file), text, { flag: 'wx' })
  return { files: Object.keys(files), build }
}

/** Reads a skill's directory once. */
export async function readSkill(dir: string): Promise<SkillPackage> {
  const all: SkillFile[] = []
  collect(dir, '', all, { bytes: 0 })
  const files = all.filter(({ path }) => path !== SIGNATURE_FILE)
  const signed = all.find(({ path }) => path === SIGNATURE_FILE)
  const signature = signed && new TextDecoder().decode(signed.bytes)
  const source = files.find(({ path }) => path === 'skill.toml')
  if (!source) throw broken(`\`${dir}\` holds no skill.toml`)
  const manifest = await parseManifest(new TextDecoder().decode(source.bytes))
  const entry = files.find(({ path }) => path === manifest.runtime.entry)
  if (!entry) throw broken(`the entry \`${manifest.runtime.entry}\` is not in the skill`)
  return { dir, manifest, files, entry, hash: hashOf(files), signature }
}

function collect(dir: string, below: string, files: SkillFile[], used: { bytes: number }): void {
  for (const entry of entriesOf(join(dir, below))) {
    const path = below === '' ? entry.name : `${below}/${entry.name}`
    if (entry.isDirectory()) {
      if (!SKIPPED.includes(entry.name)) collect(dir, path, files, used)
      continue
    }
    if (!entry.isFile())
      throw broken(`\`${path}\` is neither a file nor a directory`, 'a skill holds no links')
    const bytes = readPlain(join(dir, path), path)
    used.bytes += bytes.length
    if (files.length >= MAX_FILES || used.bytes > MAX_BYTES)
      throw broken(`a skill has at most ${MAX_FILES} files and ${MAX_BYTES / 1024 / 1024} MB`)
    files.push({ path, bytes })
  }
}

function entriesOf(dir: string): readonly import('node:fs').Dirent[] {
  try {
    return readdirSync(dir, { withFileTypes: true }).sort((a, b) => (a.name < b.name ? -1 : 1))
  } catch (cause) {
    throw new SandboxError('invalid-input', `\`${dir}\` cannot be read`, {
      cause,
      hint: 'name the directory that holds skill.toml',
    })
  }
}

/** SECURITY: a file that was replaced by a symlink after the listing is not followed. */
function readPlain(file: string, path: string): Uint8Array {
  const fd = openSync(file, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK)
  try {
    const stat = fstatSync(fd)
    if (!stat.isFile() || stat.size > MAX_BYTES) throw broken(`\`${path}\` is not a file of a skill`)
    return readFileSync(fd)
  } finally {
    closeSync(fd)
  }
}

/** Each path and content is prefixed with its length, so that bytes cannot move between files without changing the hash. */
function hashOf(files: readonly SkillFile[]): string {
  const hash = createHash('sha256')
  for (const { path, bytes } of files) {
    hash.update(`${Buffer.byteLength(path)}:${path}${bytes.length}:`).update(bytes)
  }
  return hash.digest('hex')
}

/**
 * Writes the files that were read to a new directory, so that the code that runs is the code that was hashed, even if
 * the original changes meanwhile. The caller removes the directory.
 */
export function stageSkill({ files }: SkillPackage): string {
  const root = mkdtempSync(join(tmpdir(), 'ringfence-skill-'))
  // The sandbox may run as another user.
  chmodSync(root, 0o755)
  for (const { path, bytes } of files) {
    const file = join(root, path)
    mkdirSync(dirname(file), { recursive: true, mode: 0o755 })
    writeFileSync(file, bytes, { mode: 0o644, flag: 'wx' })
  }
  return root
}
