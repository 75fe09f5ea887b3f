import { SandboxError } from '../model/errors.ts'
import { visible, visibleJson } from '../model/visible.ts'
import { helpText, VERSION } from './help.ts'
import { hostTrouble } from './terminal/host-errors.ts'
import { endWithReader, err, out } from './terminal/output.ts'

/** What every command exports: it gets what stands behind its name and answers with an exit code. */
type Command = (args: readonly string[]) => Promise<number>

/** Loaded one by one: start-up pays for the command that runs and for nothing else. */
const COMMANDS: Readonly<Record<string, () => Promise<Command>>> = {
  run: async () => (await import('./run.ts')).run,
  auto: async () => (await import('./auto.ts')).auto,
  review: async () => (await import('./review.ts')).review,
  check: async () => (await import('./check.ts')).check,
  image: async () => (await import('./image.ts')).image,
  doctor: async () => (await import('./doctor.ts')).doctor,
  policy: async () => (await import('./policy.ts')).policy,
  audit: async () => (await import('./audit.ts')).audit,
  skill: async () => (await import('./skill.ts')).skill,
  wasm: async () => (await import('./wasm.ts')).wasm,
  eval: async () => (await import('./eval.ts')).evaluate,
  mcp: async () => (await import('./mcp.ts')).mcp,
  hook: async () => (await import('./hook.ts')).hook,
  serve: async () => (await import('./serve.ts')).serve,
  sandbox: async () => (await import('./sandbox.ts')).sandbox,
  key: async () => (await import('./key.ts')).key,
  approve: async () => (await import('./approve.ts')).approve,
  reject: async () => (await import('./approve.ts')).reject,
  migrate: async () => (await import('./migrate.ts')).migrate,
  reload: async () => (await import('./approve.ts')).reload,
}

async function main(argv: readonly string[]): Promise<number> {
  const [name, ...args] = leadingCommand(argv)
  if (name === undefined || name === '--help' || name === '-h' || name === 'help') {
    out(helpText(args[0] ?? ''))
    return name === undefined ? 2 : 0
  }
  if (name === '--version' || name === 'version') {
    out(`${VERSION}\n`)
    return 0
  }
  const load = Object.hasOwn(COMMANDS, name) ? COMMANDS[name] : undefined
  if (!load) throw unknownCommand(name)
  if (asksHelp(args)) {
    out(helpText(name))
    return 0
  }
  return (await load())(args)
}

/** `--json` and the like may stand before the command's name too. */
function leadingCommand(argv: readonly string[]): readonly string[] {
  const flags = argv.findIndex((word) => word !== '--json' && word !== '--quiet')
  return flags <= 0 ? argv : [argv[flags] as string, ...argv.slice(0, flags), ...argv.slice(flags + 1)]
}

function asksHelp(args: readonly string[]): boolean {
  const own = args.includes('--') ? args.slice(0, args.indexOf('--')) : args
  return own.includes('--help') || own.includes('-h')
}

const unknownCommand = (name: string): SandboxError =>
  new SandboxError('invalid-input', `unknown command \`${name}\``, { hint: 'see `ringfence --help`' })

/** The one place where errors become text and exit codes. An unknown one is our own defect. */
function fail(error: unknown, json: boolean): number {
  const known =
    error instanceof SandboxError
      ? error
      : (hostTrouble(error) ??
        new SandboxError('internal', `internal error: ${(error as Error)?.message ?? 'unknown'}`, {
          hint: 'this is a defect; please report it',
        }))
  const { code, hint } = known
  // One line, whatever the input held: a newline or an escape must not write a line of its own.
  const message = visible(known.message)
  if (json) err(`${visibleJson({ error: { code, message, ...(hint && { hint }) } })}\n`)
  else err(`ringfence: ${code}: ${message}\n${hint ? `hint: ${hint}\n` : ''}`)
  return known.exitCode
}

function wantsJson(argv: readonly string[]): boolean {
  const own = argv.includes('--') ? argv.slice(0, argv.indexOf('--')) : argv
  return own.includes('--json')
}

const argv = process.argv.slice(2)
let closedExit: number | undefined
endWithReader((code) => {
  closedExit = code
})
// Node ends quietly when nothing is left to wait for; a command that never answered must not look like one that went well.
process.exitCode = new SandboxError('internal', 'no answer').exitCode
void main(argv)
  .catch((error: unknown) => fail(error, wantsJson(argv)))
  .then((code) => {
    process.exitCode = closedExit ?? code
  })
