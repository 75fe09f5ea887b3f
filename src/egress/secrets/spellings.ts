/**
 * How servers write one character of a value in text: as itself, or as an escape of URLs, JSON, JavaScript, shells and HTML.
 */

/** A place in the spellings of a character. INVARIANT: the same for every value, so that it tells nothing about one. */
export type Spelling = { readonly next: Map<number, Spelling>; ends: boolean }

/** A byte that is no character, as in a value that is not UTF-8; added to the byte. */
const BYTE = 0x11_0000

const NAMED: Readonly<Record<string, string>> = {
  '!': 'excl',
  '"': 'quot QUOT',
  '#': 'num',
  $: 'dollar',
  '%': 'percnt',
  '&': 'amp AMP',
  "'": 'apos',
  '(': 'lpar',
  ')': 'rpar',
  '*': 'ast midast',
  '+': 'plus',
  ',': 'comma',
  '.': 'period',
  '/': 'sol',
  ':': 'colon',
  ';': 'semi',
  '<': 'lt LT',
  '=': 'equals',
  '>': 'gt GT',
  '?': 'quest',
  '@': 'commat',
  '[': 'lsqb lbrack',
  '\\': 'bsol',
  ']': 'rsqb rbrack',
  '^': 'Hat',
  _: 'lowbar UnderBar',
  '`': 'grave DiacriticalGrave',
  '{': 'lcub lbrace',
  '|': 'verbar vert VerticalLine',
  '}': 'rcub rbrace',
}
const SHORT: Readonly<Record<string, string>> = { '\n': '\\n', '\r': '\\r' }

const known = new Map<number, Spelling>()

/** The spellings of a character, as a tree. */
export function spellingsOf(char: number): Spelling {
  const found = known.get(char)
  if (found !== undefined) return found
  const root: Spelling = { next: new Map(), ends: false }
  for (const spelling of char < BYTE ? ofCharacter(char) : ofByte(char - BYTE)) add(root, spelling)
  known.set(char, root)
  return root
}

/** The characters of a text in UTF-8; a byte that is no part of one stands for itself. */
export function charactersOf(bytes: Buffer): Uint32Array {
  const text = bytes.toString()
  return Buffer.from(text).equals(bytes)
    ? Uint32Array.from(text, (char) => char.codePointAt(0) as number)
    : Uint32Array.from(bytes, (byte) => (byte < 0x80 ? byte : BYTE + byte))
}

function add(root: Spelling, spelling: string): void {
  let node = root
  for (const byte of Buffer.from(spelling, 'latin1')) {
    const next = node.next.get(byte) ?? { next: new Map(), ends: false }
    node.next.set(byte, next)
    node = next
  }
  node.ends = true
}

type Hex = (value: number, digits: number) => string
const small: Hex = (value, digits) => value.toString(16).padStart(digits, '0')
const large: Hex = (value, digits) => small(value, digits).toUpperCase()

const percent = (bytes: Buffer, hex: Hex): string => Array.from(bytes, (byte) => `%${hex(byte, 2)}`).join('')

const ofByte = (byte: number): readonly string[] =>
  [small, large].map((hex) => `%${hex(byte, 2)}`).concat(String.fromCharCode(byte))

function ofCharacter(char: number): readonly string[] {
  const text = String.fromCodePoint(char)
  const bytes = Buffer.from(text)
  return [
    bytes.toString('latin1'),
    ...(text === ' ' ? ['+'] : []),
    ...[small, large].flatMap((hex) => [percent(bytes, hex), ...entities(char, hex)]),
    ...(NAMED[text]?.split(' ').map((name) => `&${name};`) ?? []),
    ...[small, large].flatMap((hex) => backslashed(text, char, hex)).flatMap(escapedAgain),
  ]
}

/** In HTML and XML; programs write leading zeros too, such as `&#039;`. */
const entities = (char: number, hex: Hex): readonly string[] =>
  [1, 2, 3, 4].flatMap((digits) => [
    `&#${String(char).padStart(digits, '0')};`,
    `&#x${hex(char, digits)};`,
    `&#X${hex(char, digits)};`,
  ])

function backslashed(text: string, char: number, hex: Hex): readonly string[] {
  const units = Array.from({ length: text.length }, (_, index) => text.charCodeAt(index))
  return [
    units.map((unit) => `\\u${hex(unit, 4)}`).join(''),
    `\\u{${hex(char, 1)}}`,
    ...(char < 0x100 ? [`\\x${hex(char, 2)}`] : []),
    ...(/^[ -~]$/.test(text) && !/\w/.test(text) ? [`\\${text}`] : []),
    ...(SHORT[text] === undefined ? [] : [SHORT[text]]),
  ]
}

/** JSON inside JSON. */
const escapedAgain = (spelling: string): readonly string[] =>
  ['', '\\', '\\\\'].map((more) => more + spelling)

/** Percent-encodes every byte that is not safe in a query. */
export function percentEncoded(bytes: Buffer): string {
  let text = ''
  for (const byte of bytes) {
    const char = String.fromCharCode(byte)
    text += /[A-Za-z0-9._~-]/.test(char) ? char : `%${byte.toString(16).toUpperCase().padStart(2, '0')}`
  }
  return text
}
