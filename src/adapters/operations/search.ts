import { posix } from 'node:path'
import { SandboxError } from '../../model/errors.ts'
import { boolean, number, object, optional, text } from '../../model/shape.ts'
import { clip } from '../capture.ts'
import { READ_CHARS } from '../results.ts'
import type { AgentSession } from '../session.ts'
import { guestPath } from './files.ts'
import { type Call, done, type Operation, operation, type Result, told } from './operation.ts'

const DEPTH = 16
const MOST = 1000
const where = optional(told(text({ max: 4096 }), 'directory to search; default: the workspace'))

/** Compiles a glob: `**` matches across directories, `*` and `?` do not, `{a,b}` matches either. */
function globExpression(pattern: string): RegExp {
  let source = ''
  for (let at = 0; at < pattern.length; at++) {
    const char = pattern[at] as string
    if (char === '*' && pattern[at + 1] === '*') {
      const slash = pattern[at + 2] === '/'
      source += slash ? '(?:[^/]+/)*' : '.*'
      at += slash ? 2 : 1
    } else if (char === '*') source += '[^/]*'
    else if (char === '?') source += '[^/]'
    else if (char === '{' && pattern.includes('}', at)) source += '(?:'
    else if (char === '}' && source.includes('(?:')) source += ')'
    else if (char === ',' && source.lastIndexOf('(?:') > source.lastIndexOf(')')) source += '|'
    else source += char.replace(/[\\^$.|+()[\]{}]/, '\\$&')
  }
  try {
    return new RegExp(`^${source}$`)
  } catch {
    throw new SandboxError('invalid-input', `\`${pattern.slice(0, 80)}\` is not a valid pattern`)
  }
}

/** Matching files, sorted; `.git` and `node_modules` only if the pattern names them. */
async function glob(session: AgentSession, pattern: string, begin?: string): Promise<readonly string[]> {
  const sandbox = await session.sandbox()
  const root = guestPath(sandbox, begin ?? '.')
  const rooted = pattern.startsWith('/')
  // Adjacent stars could make matching slow; names come from the sandbox and are short.
  const expression = globExpression(pattern.replace(/\*{3,}/g, '**').replace(/^\.\//, ''))
  const noise = ['.git', 'node_modules'].filter((name) => !pattern.includes(name))
  const entries = await sandbox.files.list(root, DEPTH)
  return entries
    .filter(({ kind }) => kind === 'file' || kind === 'link')
    .map(({ path }) => path)
    .filter(
      (path) =>
        !posix
          .relative(root, path)
          .split('/')
          .some((part) => noise.includes(part)),
    )
    .filter((path) => expression.test(rooted ? path : posix.relative(root, path)))
    .sort()
}

/** Runs `grep` inside the sandbox, so that an expensive pattern does not cost the host time. */
async function grep(
  session: AgentSession,
  asked: {
    readonly pattern: string
    readonly path?: string
    readonly glob?: string
    readonly ignore_case?: boolean
  },
  call: Call,
): Promise<Result> {
  const sandbox = await session.sandbox()
  const argv = [
    'grep',
    '-rnE',
    '--exclude-dir=.git',
    '--exclude-dir=node_modules',
    '--binary-files=without-match',
    ...(asked.ignore_case ? ['-i'] : []),
    ...(asked.glob === undefined ? [] : [`--include=${asked.glob}`]),
    '-e',
    asked.pattern,
    '--',
    guestPath(sandbox, asked.path ?? '.'),
  ]
  const { outcome, stdout, stderr } = await session.run(argv, { timeoutMs: 60_000 }, call)
  if (outcome.kind !== 'exited' || (outcome.code > 1 && stdout === ''))
    throw new SandboxError('invalid-input', `grep failed: ${clip(stderr.trim(), 300) || outcome.kind}`)
  const lines = stdout.split('\n').filter((line) => line !== '')
  const shown = clip(lines.slice(0, MOST).join('\n'), READ_CHARS)
  return done(shown || 'no files found', {
    matches: lines.length,
    lines: shown,
    truncated: lines.length > MOST,
  })
}

/** Tools that search files. */
export const searchOperations: readonly Operation[] = [
  operation({
    name: 'file_list',
    title: 'List a directory',
    effect: 'looks',
    about: 'Lists a directory; `depth` includes subdirectories.',
    input: object({ path: where, depth: optional(number({ integer: true, min: 1, max: DEPTH })) }),
    output: {
      type: 'object',
      properties: { entries: { type: 'array', items: { type: 'object' } }, truncated: { type: 'boolean' } },
      required: ['entries', 'truncated'],
    },
    async run(session, { path, depth }) {
      const sandbox = await session.sandbox()
      const all = await sandbox.files.list(guestPath(sandbox, path ?? '.'), depth ?? 1)
      const entries = [...all]
        .sort((a, b) => (a.path < b.path ? -1 : 1))
        .slice(0, MOST)
        .map(({ path: at, kind, size }) => ({ path: at, kind, size }))
      const shown = entries.map(({ path: at, kind }) => (kind === 'dir' ? `${at}/` : at)).join('\n')
      return done(shown || 'empty', { entries, truncated: all.length > MOST })
    },
  }),
  operation({
    name: 'file_glob',
    title: 'Find files by name',
    effect: 'looks',
    about: 'Finds files by a pattern such as `src/**/*.ts`.',
    input: object({ pattern: text({ max: 1024 }), path: where }),
    output: {
      type: 'object',
      properties: { paths: { type: 'array', items: { type: 'string' } }, truncated: { type: 'boolean' } },
      required: ['paths', 'truncated'],
    },
    async run(session, { pattern, path }) {
      const all = await glob(session, pattern, path)
      const paths = all.slice(0, MOST)
      return done(paths.join('\n') || 'no files found', { paths, truncated: all.length > MOST })
    },
  }),
  operation({
    name: 'file_grep',
    title: 'Search in files',
    effect: 'looks',
    about: 'Searches files for an extended regular expression; returns `path:line:text`.',
    input: object({
      pattern: text({ max: 4096 }),
      path: where,
      glob: optional(told(text({ max: 256 }), 'only files that match, e.g. `*.py`')),
      ignore_case: optional(boolean()),
    }),
    output: {
      type: 'object',
      properties: { matches: { type: 'integer' }, lines: { type: 'string' }, truncated: { type: 'boolean' } },
      required: ['matches', 'lines', 'truncated'],
    },
    run: grep,
  }),
]
