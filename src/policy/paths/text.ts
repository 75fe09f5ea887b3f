/** Checks on the text of a path, before the file system is accessed: decoding, folding and comparison of names. */

export type Screened =
  | { readonly kind: 'path'; readonly path: string }
  | { readonly kind: 'refused'; readonly reason: string }

const refused = (reason: string): Screened => ({ kind: 'refused', reason })

// PLATFORM: the kernel's PATH_MAX; longer paths cannot be opened in one call anyway.
const MAX_PATH = 4096
// No legitimate client encodes a name more often.
const MAX_ROUNDS = 8
// C0, DEL, C1, line separators and the bidirectional overrides that disguise a name.
const UNPRINTABLE = /[\u0000-\u001f\u007f-\u009f\u2028\u2029\u202a-\u202e\u2066-\u2069]|\p{Cs}|\ufffd/u
const PLAIN = /^[\x20-\x7e]*$/
// Characters that some hosts' best-fit tables convert to a separator although NFKC does not.
const SLASHES = /[/\\\u2044\u2215\u29f8\u2571\u27cb\u2216\u29f5]/
const IGNORABLE = /\p{Default_Ignorable_Code_Point}/gu

/** The segments of a path as the kernel splits it; `.` and empty segments are dropped. */
export const segmentsOf = (path: string): readonly string[] =>
  path.split('/').filter((segment) => segment !== '' && segment !== '.')

/**
 * The path that a request refers to, or why its text alone is refused. `http` is a raw percent-encoded parameter, decoded
 * once; text that would become a traversal if decoded again is refused in both forms.
 */
export function screenPath(raw: string, via?: string): Screened {
  if (raw.length > MAX_PATH) return refused('path is longer than 4096 characters')
  const path = via === 'http' ? decodeOnce(raw) : raw
  if (path === undefined) return refused('path is not valid percent-encoded UTF-8')
  if (!path.startsWith('/')) return refused('path is not absolute')
  const readings = readingsOf(path)
  if (readings.length > MAX_ROUNDS) return refused('path is percent-encoded too often')
  for (const reading of readings) {
    if (UNPRINTABLE.test(reading)) return refused('path holds control characters or invalid text')
    if (foldedNames(reading).some(isTraversal)) return refused('path holds a `..` segment')
  }
  return { kind: 'path', path }
}

function decodeOnce(raw: string): string | undefined {
  try {
    // Strict on purpose: lone `%`, `%u002e` and overlong UTF-8 are errors here.
    return decodeURIComponent(raw)
  } catch {
    return undefined
  }
}

/** The path and every result of decoding it repeatedly, up to a limit. */
export function readingsOf(path: string): readonly string[] {
  const readings = [path]
  for (let text = path; text.includes('%') && readings.length <= MAX_ROUNDS; ) {
    const decoded = decodeLeniently(text)
    if (decoded === text) break
    readings.push(decoded)
    text = decoded
  }
  return readings
}

/** Accepts the same input as lenient decoders: `%u`, overlong UTF-8. */
function decodeLeniently(text: string): string {
  return text.replace(/%u([0-9a-f]{4})|((?:%[0-9a-f]{2})+)/gi, (_, unit: string | undefined, run: string) =>
    unit === undefined
      ? sloppyUtf8(
          run
            .split('%')
            .slice(1)
            .map((hex) => Number.parseInt(hex, 16)),
        )
      : String.fromCharCode(Number.parseInt(unit, 16)),
  )
}

function sloppyUtf8(bytes: readonly number[]): string {
  let out = ''
  for (let at = 0; at < bytes.length; ) {
    const lead = bytes[at] as number
    const extra = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : lead >= 0xc0 ? 1 : 0
    let code = extra === 0 ? lead : lead & (0x3f >> extra)
    for (let index = 1; index <= extra; index++) code = (code << 6) | ((bytes[at + index] ?? 0) & 0x3f)
    out += String.fromCodePoint(Math.min(code, 0x10ffff))
    at += extra + 1
  }
  return out
}

/**
 * A name as a lenient host would see it: compatibility forms, case, invisible characters and outer spaces normalised.
 */
function foldName(name: string): string {
  if (PLAIN.test(name)) return name.toLowerCase().trim()
  // Upper case first: it merges letters that lower case keeps distinct (long s, dotless i).
  return name.normalize('NFKC').replace(IGNORABLE, '').toUpperCase().toLowerCase().normalize('NFKC').trim()
}

/** The names of a path after folding; look-alikes of slash and backslash are separators too. */
function foldedNames(path: string): readonly string[] {
  const text = PLAIN.test(path) ? path : path.normalize('NFKC').replace(IGNORABLE, '')
  return text.split(SLASHES).map(foldName)
}

/** `..`, also with blanks that a host could trim. Three dots and more are a name. */
const isTraversal = (name: string): boolean => /^\.\.(;.*)?$/.test(name.replaceAll(' ', ''))

/** A loop instead of a regular expression: `[. ]+$` takes quadratic time on a long sequence of dots. */
function withoutTail(name: string): string {
  let end = name.length
  while (end > 0 && (name[end - 1] === '.' || name[end - 1] === ' ')) end--
  return name.slice(0, end)
}

/**
 * All forms of a folded name that a host may treat as equal: the name itself, and on NTFS, where `name:stream` is the file
 * `name` and `GIT~1` is the directory `.git`.
 */
type Name = { readonly plain: string; readonly bare: string; readonly short: string | undefined }

/** The names in one reading of a path, ready for comparison; `.` and empty names are dropped. */
export function namesOf(reading: string): readonly Name[] {
  return foldedNames(reading).flatMap((name) => {
    if (name === '' || name === '.') return []
    const bare = name.includes(':') ? name.slice(0, name.indexOf(':')) : name
    const short = bare.includes('~') ? /^([^~]{1,6})~\d/.exec(bare)?.[1] : undefined
    return [{ plain: withoutTail(name), bare: withoutTail(bare), short }]
  })
}

type PatternName = { readonly name: string; readonly stem: string }
/** A blocked or protected name, parsed: `.config/gcloud` has two parts. */
export type Pattern = { readonly text: string; readonly parts: readonly PatternName[] }

// Cached, because folding a policy's patterns costs more than comparing them; the result depends only on the list.
const PARSED = new WeakMap<readonly string[], readonly Pattern[]>()

/** The patterns of a policy's list; empty ones match nothing and are dropped. */
export function patternsOf(list: readonly string[]): readonly Pattern[] {
  const known = PARSED.get(list)
  if (known !== undefined) return known
  const patterns = list
    .map((text) => ({ text, parts: partsOf(text) }))
    .filter(({ parts }) => parts.length > 0 && parts.every(({ name }) => name !== ''))
  PARSED.set(list, patterns)
  return patterns
}

function partsOf(pattern: string): readonly PatternName[] {
  return namesOf(pattern).map(({ plain }) => {
    const undotted = plain.replace(/^\.+/, '')
    const base = undotted.includes('.') ? undotted.slice(0, undotted.lastIndexOf('.')) : undotted
    return { name: plain, stem: base.replace(/[. ]/g, '').slice(0, 6) }
  })
}

const isSame = ({ plain, bare, short }: Name, { name, stem }: PatternName): boolean =>
  plain === name || bare === name || (short !== undefined && short === stem)

/** Whether the pattern occurs in the names as a sequence of whole segments. */
export const holdsPattern = (names: readonly Name[], { parts }: Pattern): boolean =>
  names.some((_, start) => start + parts.length <= names.length && matchesAt(names, start, parts))

/** Whether the names end inside the pattern, so that they name a parent directory of the protected path. */
export function endsInsidePattern(names: readonly Name[], { parts }: Pattern): boolean {
  for (let taken = 1; taken < parts.length && taken <= names.length; taken++) {
    if (matchesAt(names, names.length - taken, parts.slice(0, taken))) return true
  }
  return false
}

const matchesAt = (names: readonly Name[], start: number, parts: readonly PatternName[]): boolean =>
  parts.every((part, offset) => isSame(names[start + offset] as Name, part))

/** The first blocked pattern that some reading of the path contains as whole segments, or `undefined`. */
export function isBlockedPath(blocked: readonly string[], path: string): string | undefined {
  const patterns = patternsOf(blocked)
  for (const reading of readingsOf(path)) {
    const names = namesOf(reading)
    const hit = patterns.find((pattern) => holdsPattern(names, pattern))
    if (hit !== undefined) return hit.text
  }
  return undefined
}
