import { SandboxError } from '../../model/errors.ts'
import { visible, visibleJson } from '../../model/text/visible.ts'
import { VERSION } from '../../model/version.ts'
import { helpText } from '../help/help.ts'
import { hostTrouble } from '../terminal/host-errors.ts'
import { err, out } from '../terminal/output.ts'
import { closest } from './closest.ts'

/** Every command takes the arguments after its name and resolves to an exit code. */
type Command = (args: readonly string[]) => Promise<number>

type Commands = Readonly<Partial<Record<string, () => Promise<Command>>>>

/** Loaded on demand, so that start-up loads only the command that runs. */
const COMMANDS: Commands = {
  run: async () => (await import('../run.ts')).run,
  auto: async () => (await import('../auto.ts')).auto,
  review: async () => (await import('../review.ts')).review,
  check: async () => (await import('../check.ts')).check,
  image: async () => (await import('../image.ts')).image,
  doctor: async () => (await import('../doctor.ts')).doctor,
  prove: async () => (await import('../prove.ts')).prove,
  policy: async () => (await import('../policy.ts')).policy,
  audit: async () => (await import('../audit.ts')).audit,
  skill: async () => (await import('../skill.ts')).skill,
  wasm: async () => (await import('../wasm.ts')).wasm,
  eval: async () => (await import('../eval.ts')).evaluate,
  'exec-server': async () => (await import('../exec-server.ts')).execServer,
  mcp: async () => (await import('../mcp.ts')).mcp,
  worker: async () => (await import('../worker.ts')).worker,
  hook: async () => (await import('../hook.ts')).hook,
  serve: async () => (await import('../server/serve.ts')).serve,
  sandbox: async () => (await import('../sandbox.ts')).sandbox,
  volume: async () => (await import('../server/volume.ts')).volume,
  cluster: async () => (await import('../server/cluster.ts')).cluster,
  node: async () => (await import('../server/node.ts')).node,
  snapshot: async () => (await import('../server/snapshot.ts')).snapshot,
  template: async () => (await import('../server/template.ts')).template,
  webhook: async () => (await import('../server/webhook.ts')).webhook,
  login: async () => (await import('../server/login.ts')).login,
  logout: async () => (await import('../server/login.ts')).logout,
  key: async () => (await import('../server/key.ts')).key,
  approve: async () => (await import('../server/approve.ts')).approve,
  reject: async () => (await import('../server/approve.ts')).reject,
  migrate: async () => (await import('../server/migrate.ts')).migrate,
  backup: async () => (await import('../server/backup.ts')).backup,
  restore: async () => (await import('../server/backup.ts')).restore,
  completion: async () => (await import('../completion.ts')).completion,
  reload: async () => (await import('../server/approve.ts')).reload,
}

/** Runs a command line and resolves to its exit code; errors are printed. */
export const runCommandLine = (argv: readonly string[], also: Commands = {}): Promise<number> =>
  dispatch(argv, also).catch((error: unknown) => fail(error, wantsJson(argv)))

async function dispatch(argv: readonly string[], also: Commands): Promise<number> {
  const [name, ...args] = leadingCommand(argv)
  if (name === 'help' && args[0] === 'errors')
    return (await import('../help/error-help.ts')).errorHelp(args.includes('--json'))
  if (name === undefined || name === '--help' || name === '-h' || name === 'help') {
    out(helpText(args[0] ?? ''))
    return name === undefined ? 2 : 0
  }
  if (name === '--version' || name === 'version') {
    out(`${VERSION}\n`)
    return 0
  }
  const known = { ...COMMANDS, ...also }
  const load = Object.hasOwn(known, name) ? known[name] : undefined
  if (!load) throw unknownCommand(name)
  if (asksHelp(name, args)) {
    out(helpText(name))
    return 0
  }
  return (await load())(args)
}

/** Flags that may stand before the command's name. */
const LEADING_FLAGS = ['--json', '--quiet', '--no-broker']

/** The name of the command that the words call for. */
export const commandName = (argv: readonly string[]): string =>
  argv.find((word) => !LEADING_FLAGS.includes(word)) ?? ''

/** Moves them behind it. */
function leadingCommand(argv: readonly string[]): readonly string[] {
  const flags = argv.findIndex((word) => !LEADING_FLAGS.includes(word))
  return flags <= 0 ? argv : [argv[flags] as string, ...argv.slice(0, flags), ...argv.slice(flags + 1)]
}

/** Commands that read `--help` themselves: flags after the name of the program to run (`run ls --help`) belong to it. */
const READ_HELP = ['run', 'sandbox']

function asksHelp(name: string, args: readonly string[]): boolean {
  if (READ_HELP.includes(name)) return false
  const own = args.includes('--') ? args.slice(0, args.indexOf('--')) : args
  return own.includes('--help') || own.includes('-h')
}

function unknownCommand(name: string): SandboxError {
  const meant = closest(name, Object.keys(COMMANDS))
  const hint = meant ? `did you mean \`ringfence ${meant}\`?` : 'see `ringfence --help`'
  return new SandboxError('invalid-input', `unknown command \`${name}\``, { hint })
}

/** Prints an error and returns its exit code. An error of unknown type is a bug in ringfence. */
function fail(error: unknown, json: boolean): number {
  const known =
    error instanceof SandboxError
      ? error
      : (hostTrouble(error) ??
        new SandboxError('internal', `internal error: ${(error as Error)?.message ?? 'unknown'}`, {
          hint: 'this is a bug in ringfence; please report it',
        }))
  const { code, hint } = known
  // Always one line: a newline or escape sequence in the input must not forge another line.
  const message = visible(known.message)
  if (json) err(`${visibleJson({ error: { code, message, ...(hint && { hint }) } })}\n`)
  else err(`ringfence: ${code}: ${message}\n${hint ? `hint: ${hint}\n` : ''}`)
  return known.exitCode
}

function wantsJson(argv: readonly string[]): boolean {
  const own = argv.includes('--') ? argv.slice(0, argv.indexOf('--')) : argv
  return own.includes('--json')
}
