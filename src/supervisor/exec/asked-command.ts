import type { Command } from '../../model/command.ts'
import { SandboxError } from '../../model/errors.ts'
import type { AskedCommand } from '../gate.ts'

/** Parses what a caller wants to run: a shell line (text) or a program (list). Throws if it is not a command. */
export function askedCommand(command: string | readonly string[]): AskedCommand {
  if (typeof command === 'string') {
    if (command.trim() === '') throw new SandboxError('no-command', 'no command was given')
    if (command.includes('\0'))
      throw new SandboxError('invalid-input', 'the command contains a NUL character')
    return { line: command }
  }
  const [program, ...rest] = command
  if (program === undefined || program === '') throw new SandboxError('no-command', 'no command was given')
  if (command.some((word) => word.includes('\0')))
    throw new SandboxError('invalid-input', 'the command contains a NUL character')
  return { argv: [program, ...rest] }
}

/** The command in the form that a backend runs. */
export function placed(
  asked: AskedCommand,
  { cwd, env, user, secrets, network, ports }: Omit<Command, 'argv'>,
): Command {
  const argv: readonly [string, ...string[]] = 'line' in asked ? ['/bin/bash', '-c', asked.line] : asked.argv
  return {
    argv,
    ...(cwd === undefined ? {} : { cwd }),
    ...(env === undefined ? {} : { env }),
    ...(user === undefined ? {} : { user }),
    ...(secrets === undefined ? {} : { secrets }),
    ...(network === undefined ? {} : { network }),
    ...(ports === undefined ? {} : { ports }),
  }
}
