import type { OpenSandbox } from '../../../supervisor/open-sandbox.ts'
import { ConnectError } from '../errors.ts'

/** The languages of the code interpreter: the program that runs each, and how it is spoken to. */

/** One piece of code for a kernel, with variables that are set for it alone. */
export type CodeRequest = {
  readonly code: string
  readonly env?: Readonly<Record<string, string>> | undefined
}
type Argv = readonly [string, ...string[]]

type LanguageRow = {
  readonly aliases: readonly string[]
  /** The files that the sandbox needs, by name, given the reader of guest/kernels. */
  readonly files: (read: (file: string) => string) => Readonly<Record<string, string>>
  /** The program, searched in the sandbox's `PATH`, and its arguments, given the directory of the files. */
  readonly program: string
  readonly args: (directory: string) => readonly string[]
  /** Debian's package with the program, for programs that many sandboxes lack. */
  readonly package?: string
  /** Command lines with the effect of the code, for the policy. */
  readonly commands: (code: string) => readonly [Argv, ...Argv[]]
  readonly encode: (request: CodeRequest) => string
  /** What the program writes to standard error by itself, for nobody. */
  readonly noise?: RegExp
}

const asJson = (request: CodeRequest): string => `${JSON.stringify(request)}\n`

/** Where the sandbox keeps the kernels' files. */
export const KERNELS = '/tmp/.ringfence-kernels'

const only =
  (...names: readonly string[]): LanguageRow['files'] =>
  (read) =>
    Object.fromEntries(names.map((name) => [name, read(name)]))

/** PERFORMANCE: one file, because each write costs a process in the sandbox. JSON is a Python literal here. */
const pythonFile: LanguageRow['files'] = (read) => {
  const parts = ['formats', 'charts', 'ipython_shell', 'plain_shell']
  const texts = Object.fromEntries(parts.map((name) => [name, read(`python/${name}.py`)]))
  return { 'python.py': `PARTS = ${JSON.stringify(texts)}\n${read('python/main.py')}` }
}

const node = (name: string, ...aliases: readonly string[]): LanguageRow => ({
  aliases,
  files: only('javascript.cjs', 'syntax.cjs'),
  program: 'node',
  args: (directory) => ['--no-warnings', `${directory}/javascript.cjs`, name],
  commands: (code) => [['node', '-e', code]],
  encode: asJson,
})

const LANGUAGES = {
  python: {
    aliases: ['python3', 'py'],
    files: pythonFile,
    program: 'python3',
    args: (directory) => ['-u', `${directory}/python.py`],
    commands: (code) => [['python3', '-c', code], ...shellIn(code).map((line): Argv => ['bash', '-c', line])],
    encode: asJson,
  },
  javascript: node('javascript', 'js'),
  typescript: node('typescript', 'ts'),
  bash: {
    aliases: ['sh', 'shell'],
    files: only('bash.sh'),
    program: 'bash',
    args: (directory) => ['--noprofile', '--noediting', '--rcfile', `${directory}/bash.sh`, '-i'],
    commands: (code) => [['bash', '-c', code]],
    encode: shellLines,
    // An interactive shell looks for its terminal when a signal has ended a command, as in `yes | head`.
    noise: /bash: \[\d+: \d+ \(\d+\)\] tcsetattr: Inappropriate ioctl for device\n/g,
  },
  r: {
    aliases: [],
    files: only('kernel.R'),
    program: 'Rscript',
    args: (directory) => ['--vanilla', `${directory}/kernel.R`],
    package: 'r-base-core',
    commands: (code) => [['Rscript', '-e', code]],
    encode: literalLine,
  },
  java: {
    aliases: [],
    files: only('Kernel.java'),
    program: 'java',
    args: (directory) => ['-XX:TieredStopAtLevel=1', '-XX:+UseSerialGC', `${directory}/Kernel.java`],
    package: 'default-jdk-headless',
    commands: (code) => [['jshell', '-e', code]],
    encode: encodedLine,
  },
} as const satisfies Readonly<Record<string, LanguageRow>>

/** A language of the code interpreter. */
export type Language = keyof typeof LANGUAGES

/** How a language is run. */
export const rowOf = (language: Language): LanguageRow => LANGUAGES[language]

/** The language of a name or alias; throws if there is none. */
export function languageOf(name: string | undefined): Language {
  const asked = (name || 'python').trim().toLowerCase()
  const rows: readonly (readonly [string, LanguageRow])[] = Object.entries(LANGUAGES)
  const found = rows.find(([language, { aliases }]) => language === asked || aliases.includes(asked))
  if (found) return found[0] as Language
  // Of all refusals E2B's clients show the words of this one alone.
  throw new ConnectError(
    'not_found',
    `the language \`${asked.slice(0, 32)}\` is not supported; available: ${Object.keys(LANGUAGES).join(', ')}`,
  )
}

/** Rejects a language whose program the sandbox does not have. */
export async function assertInstalled(sandbox: OpenSandbox, language: Language): Promise<void> {
  const { program, package: name } = rowOf(language)
  if (name === undefined) return
  const directories = (sandbox.plan.env.PATH ?? '/usr/bin:/bin').split(':').filter(Boolean)
  const found = directories.map((directory) => sandbox.files.stat(`${directory}/${program}`))
  const isThere = await Promise.any(found).then(
    () => true,
    () => false,
  )
  if (isThere) return
  throw new ConnectError(
    'not_found',
    `the language \`${language}\` needs the program \`${program}\`, which this sandbox does not have; Debian's package \`${name}\` provides it`,
  )
}

/** The shell lines of notebook code: `!line`, `x = !line`, `%%bash` cells and their like. */
export function shellIn(code: string): readonly string[] {
  const cell = /^\s*%%(?:bash|sh|system|sx|!|script\s+\S+)[^\n]*\n([\s\S]*)$/.exec(code)
  if (cell) return [cell[1] as string]
  const lines = code.matchAll(
    /^[ \t]*(?:[\w.,[\]' "]+=[ \t]*)?(?:!{1,2}|%s[xc][ \t]|%system[ \t])[ \t]*(\S.*)$/gm,
  )
  const pip = code.matchAll(/^[ \t]*%(pip[ \t].*)$/gm)
  return [...lines, ...pip].map(([, line]) => line as string)
}

/** A text in Bash's `$'…'`. PLATFORM: shells cannot hold NUL. */
const quoted = (text: string): string =>
  `$'${text.replaceAll('\0', '').replace(/[\\']/g, '\\$&').replaceAll('\n', '\\n').replaceAll('\r', '\\r')}'`

function shellLines({ code, env = {} }: CodeRequest): string {
  const variables = Object.entries(env).map(([name, value]) => ` ${name}=${quoted(value)}`)
  return `__ringfence_begin${variables.join('')}\neval ${quoted(code)} </dev/null\n__ringfence_end\n`
}

/** An R expression in one line. PLATFORM: R's text cannot hold NUL; JSON's escapes are R's, but for pairs of surrogates. */
function literalLine({ code, env = {} }: CodeRequest): string {
  const text = (value: string): string =>
    JSON.stringify(value.replaceAll('\0', '')).replaceAll('\\b', '\\u0008')
  const variables = Object.entries(env).map(([name, value]) => `${name}=${text(value)}`)
  return `list(code=${text(code)},env=list(${variables.join(',')}))\n`
}

/** Words in base64, for a language without a JSON parser of its own: the code, then names and values. */
function encodedLine({ code, env = {} }: CodeRequest): string {
  const words = [code, ...Object.entries(env).flat()]
  return `${words.map((word) => Buffer.from(word).toString('base64')).join(' ')}\n`
}
