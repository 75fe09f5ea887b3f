import type { Finding } from './finding.ts'
import { readFile } from './shell/redirect.ts'
import { type Source, type Stream, textStream } from './shell/scope.ts'
import { ANY, BELOW, isStatic } from './shell/unknown-text.ts'
import { foundBelow } from './tools/text/search.ts'
import type { Call } from './walk.ts'

const IDENTITY = new Set(
  'whoami hostname id uname logname groups hostid users who w last arp ifconfig ip lscpu'.split(' '),
)
const ENVIRONMENT = new Set(['env', 'printenv', 'set', 'export', 'declare', 'typeset', 'compgen', 'history'])
const NETWORK = new Set(
  'curl wget nc ncat netcat socat fetch aria2c http https xh httpie lynx links w3m ftp lftp tftp ssh scp sftp rsync dig nslookup host telnet openssl axel'.split(
    ' ',
  ),
)
const DECODERS = new Set([
  'base64',
  'base32',
  'xxd',
  'openssl',
  'gzip',
  'gunzip',
  'zcat',
  'bzip2',
  'xz',
  'uudecode',
  'gpg',
  'zstd',
  'od',
  'hexdump',
])

/** The output of a program, if it can be derived from its arguments. */
export function outputOf(call: Call): Stream {
  const text = Object.hasOwn(KNOWN, call.name) ? KNOWN[call.name]?.(call) : undefined
  return textStream(text ?? ANY, sourcesOf(call))
}

/** Programs that print their arguments. */
const PRINTERS = new Set(['echo', 'printf'])

function sourcesOf({ name, node, stdin, args, walk }: Call): ReadonlySet<Source> {
  const added = ADDED.get(name)
  const isSecret = node.findings.some(isAboutSecrets)
  if (added === undefined && !isSecret) return stdin.from
  const from = new Set(stdin.from)
  if (PRINTERS.has(name))
    for (const source of walk.sources.values()) if (source[0] !== '$') from.add(source as Source)
  if (added) for (const source of added) from.add(source)
  if (isSecret) from.add('secret')
  if (READERS.has(name) && args.some((arg) => arg[0] !== '-')) from.add('files')
  return from
}

const isAboutSecrets = ({ rule }: Finding): boolean => rule.startsWith('secrets/')

const READERS = new Set(
  'cat head tail less more tac nl base64 xxd od hexdump tar gzip zcat strings grep sed awk cut sort paste rev fold bat openssl dd zip'.split(
    ' ',
  ),
)

/** What the output of a program has besides its input, by its name; empty if its arguments decide. */
const ADDED: ReadonlyMap<string, readonly Source[]> = new Map(
  [...IDENTITY, ...ENVIRONMENT, ...NETWORK, ...DECODERS, ...READERS, ...PRINTERS].map((name) => [
    name,
    [
      ...(IDENTITY.has(name) ? (['identity'] as const) : []),
      ...(ENVIRONMENT.has(name) ? (['environment'] as const) : []),
      ...(NETWORK.has(name) ? (['network'] as const) : []),
      ...(DECODERS.has(name) ? (['decoded'] as const) : []),
    ],
  ]),
)

const operands = (args: readonly string[]): readonly string[] => args.filter((arg) => arg[0] !== '-')

const KNOWN: Readonly<Record<string, (call: Call) => string | undefined>> = {
  echo: ({ args }) => echoText(args),
  printf: ({ args }) => printfText(args),
  cat: (call) => catText(call),
  tee: ({ stdin }) => stdin.text,
  pwd: ({ scope }) => `${scope.cwds.length === 1 ? scope.cwds[0] : ANY}\n`,
  basename: ({ args }) => {
    const path = operands(args)[0]
    return path !== undefined && isStatic(path)
      ? `${path
          .replace(/\/+$/, '')
          .split('/')
          .at(-1)
          ?.replace(operands(args)[1] ?? '\0', '')}\n`
      : undefined
  },
  dirname: ({ args }) => {
    const path = operands(args)[0]
    return path !== undefined && isStatic(path)
      ? `${path.replace(/\/?[^/]*\/*$/, '') || (path[0] === '/' ? '/' : '.')}\n`
      : undefined
  },
  which: ({ args }) => programPath(args),
  mktemp: ({ args }) => {
    const template = operands(args)[0]
    if (template?.includes('/')) return `${template.replace(/X{3,}/, 'tmp')}\n`
    return `/tmp/tmp.${BELOW}\n`
  },
  ls: ({ args }) => (operands(args).length === 0 ? `${BELOW}\n` : undefined),
  fd: () => `./${BELOW}\n`,
  find: ({ args }) => {
    const root = args.length === 0 || args[0]?.[0] === '-' ? '.' : (args[0] as string)
    return operands(args.slice(1)).length > 0 && args[1]?.[0] !== '-'
      ? undefined
      : `${foundBelow(root, args)}\n`
  },
  git: ({ node }) =>
    /^git (ls-files|diff|ls-tree|grep|show|log)\b/.test(node.canonical.join(' ')) &&
    /--name-only|ls-files|-l\b/.test(node.canonical.join(' '))
      ? `${BELOW}\n`
      : undefined,
  base64: ({ args, stdin }) => (decodes(args) ? decodeBase64(stdin.text) : undefined),
  xxd: ({ args, stdin }) => (args.some((arg) => /^-\w*r/.test(arg)) ? decodeHex(stdin.text) : undefined),
  openssl: ({ args, stdin }) =>
    args.includes('-d') && /base64|enc/.test(args[0] ?? '') ? decodeBase64(stdin.text) : undefined,
  rev: ({ stdin, args }) =>
    args.length === 0 && isStatic(stdin.text)
      ? stdin.text
          .split('\n')
          .map((line) => [...line].reverse().join(''))
          .join('\n')
      : undefined,
  tr: ({ stdin, args }) => translate(stdin.text, args),
}

const decodes = (args: readonly string[]): boolean =>
  args.some((arg) => /^(-\w*[dD]|--d)/.test(arg)) && operands(args).length === 0

function echoText(args: readonly string[]): string {
  let at = 0
  let escapes = false
  for (; at < args.length && /^-[neE]+$/.test(args[at] as string); at++)
    if (args[at]?.includes('e')) escapes = true
  const text = `${args.slice(at).join(' ')}\n`
  return escapes ? unescapeText(text) : text
}

function printfText(args: readonly string[]): string | undefined {
  const [format, ...values] = args[0] === '--' ? args.slice(1) : args
  if (format === undefined || format[0] === '-' || !isStatic(format)) return undefined
  let used = 0
  const once = (): string =>
    unescapeText(format).replace(/%([-+ 0#]*\d*(?:\.\d+)?)([sbqdiuxXoc%])/g, (_, __, kind: string) => {
      if (kind === '%') return '%'
      const value = values[used++] ?? ''
      return kind === 'b' ? unescapeText(value) : value
    })
  let text = once()
  while (used > 0 && used < values.length && text.length < 8192) text += once()
  return text
}

/** The escapes of `printf` and `echo -e`. */
function unescapeText(text: string): string {
  const plain: Readonly<Record<string, string>> = {
    n: '\n',
    t: '\t',
    r: '\r',
    a: '\x07',
    b: '\b',
    e: '\x1b',
    f: '\f',
    v: '\v',
    '\\': '\\',
  }
  return text.replace(
    /\\(x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{1,4}|U[0-9a-fA-F]{1,8}|0?[0-7]{1,3}|[ntrabefv\\])/g,
    (_, code: string) => {
      if (plain[code] !== undefined) return plain[code]
      const value = /^[xuU]/.test(code) ? Number.parseInt(code.slice(1), 16) : Number.parseInt(code, 8)
      return value <= 0x10ffff ? String.fromCodePoint(value) : ANY
    },
  )
}

function catText({ args, stdin, scope }: Call): string | undefined {
  const files = operands(args)
  if (args.some((arg) => arg !== '-' && arg[0] === '-')) return undefined
  if (files.length === 0) return stdin.text
  const texts = files.map((file) => readFile(scope, file).text)
  return texts.includes(ANY) ? undefined : texts.join('')
}

/** `which rm` prints the path of the program; only the name matters here. */
export function programPath(args: readonly string[]): string | undefined {
  const name = operands(args)[0]
  return name !== undefined && /^[\w.+-]+$/.test(name) ? `/usr/bin/${name}\n` : undefined
}

function decodeBase64(text: string): string | undefined {
  const clean = text.replace(/\s+/g, '')
  if (!isStatic(text) || !/^[A-Za-z0-9+/]*={0,2}$/.test(clean) || clean.length > 16_384) return undefined
  try {
    return atob(clean)
  } catch {
    return undefined
  }
}

function decodeHex(text: string): string | undefined {
  const clean = text.replace(/\s+/g, '')
  if (!isStatic(text) || !/^([0-9a-fA-F]{2})+$/.test(clean)) return undefined
  return clean.replace(/../g, (pair) => String.fromCharCode(Number.parseInt(pair, 16)))
}

const RANGE = /([a-zA-Z0-9])-([a-zA-Z0-9])/g

function translate(text: string, args: readonly string[]): string | undefined {
  const [from, to] = args.map((set) =>
    set.replace(RANGE, (_, a: string, b: string) => {
      let out = ''
      for (let code = a.charCodeAt(0); code <= b.charCodeAt(0); code++) out += String.fromCharCode(code)
      return out
    }),
  )
  if (
    !isStatic(text) ||
    from === undefined ||
    to === undefined ||
    args.length !== 2 ||
    from[0] === '-' ||
    /[[\\]/.test(from + to)
  )
    return undefined
  return [...text]
    .map((char) => (from.includes(char) ? (to[from.lastIndexOf(char)] ?? to.at(-1) ?? char) : char))
    .join('')
}
