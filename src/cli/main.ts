import { SandboxError } from '../model/errors.ts'
import { commandName, runCommandLine } from './options/command-line.ts'
import { endWithReader, leaveUnread } from './terminal/output.ts'

/** The program: one command line, one exit code. */
let closedExit: number | undefined
const args = process.argv.slice(2)
endWithReader(commandName(args) === 'hook', (code) => {
  closedExit = code
  process.exitCode = code
})
// Node exits with 0 when the event loop is empty; a command whose promise never settled must not look successful.
process.exitCode = new SandboxError('internal', 'no answer').exitCode
// Only a process of its own can be the broker, which runs command lines itself.
const broker = async () => (await import('./broker.ts')).broker
void runCommandLine(args, { broker }).then((code) => {
  process.exitCode = closedExit ?? code
  leaveUnread()
})
