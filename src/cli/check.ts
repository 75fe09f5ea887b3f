import { compose, environment, stateDirectory } from '../compose/compose.ts'
import { loadConfig } from '../host/config-file.ts'
import { usage } from './options/options.ts'
import type { CliIo } from './terminal/io.ts'
import { err, outStyled } from './terminal/output.ts'

/** `ringfence check command|path|url`: checks the input against the policy and runs nothing. */
export async function check(args: readonly string[]): Promise<number> {
  const kinds = ['command', 'path', 'url']
  const at = args.findIndex((word) => kinds.includes(word))
  const rest = args.filter((_, index) => index !== at)
  const io = standardIo(args.includes('--json'))
  switch (args[at]) {
    case 'command':
      return (await import('./check/command.ts')).checkCommand(rest, io, configOf)
    case 'path':
      return (await import('./check/path.ts')).checkPath(rest, io, configOf)
    case 'url':
      return (await import('./check/url.ts')).checkUrl(rest, io, configOf)
    default:
      throw usage('check', 'missing what to check: command, path or url')
  }
}

/** The named file, or else this user's configuration. */
const configOf = async (file?: string) => (file === undefined ? (await compose()).config : loadConfig(file))

/** A `CliIo` on the process's standard streams. */
export const standardIo = (json: boolean): CliIo => ({
  home: stateDirectory(environment()),
  // Commands with a `CliIo` escape their input themselves, because some print colours.
  out: outStyled,
  err,
  json,
})
