import { existsSync, mkdirSync, realpathSync } from 'node:fs'
import { dirname, resolve } from 'node:path'
import type { HookAgent } from '../../adapters/hooks/hook.ts'
import { hookCommand, withHook } from '../../adapters/hooks/settings.ts'
import { compose } from '../../compose/compose.ts'
import { frontPath } from '../../compose/files.ts'
import { writeAtomically } from '../../host/files/atomic-file.ts'
import { SandboxError } from '../../model/errors.ts'
import { shellQuote } from '../../model/text/shell-quote.ts'
import { visibleJson } from '../../model/text/visible.ts'
import type { HookValues } from '../hook.ts'
import { askYes } from '../terminal/ask.ts'
import { err, out } from '../terminal/output.ts'
import type { OwnProgram } from './judge.ts'
import { settingsFile, settingsIn } from './settings-file.ts'
import { type HookTest, lines, runTest } from './test.ts'

/** `ringfence hook install AGENT`: shows the settings, writes them after confirmation, and tests the hook. */
export async function install(agent: HookAgent, values: HookValues, program: OwnProgram): Promise<number> {
  const ringfence = await compose({ config: values.config, policy: values.policy })
  await ringfence.close()
  const file = settingsFile(agent, ringfence, values.project === true)
  const kind = values.project
    ? ({ kind: 'name' } as const)
    : ({ kind: 'absolute', ...program, front: ownFront() } as const)
  const settings = withHook(agent, settingsIn(file), hookCommand(agent, flagsOf(values), kind))
  const text = `${JSON.stringify(settings, null, 2)}\n`
  if (!values.json) out(`${file}:\n${text}`)
  const written = values.yes === true || (await askYes(`write ${file}? [y/N] `, values.json === true))
  if (written) write(file, text)
  const test = written ? await runTest(agent, file, ringfence) : undefined
  if (values.json) out(`${visibleJson({ file, settings, written, ...(test && { test }) })}\n`)
  return test === undefined ? nothingWritten() : closing(test, values.json === true)
}

/** The front of this platform, if the package has one. */
const ownFront = (): string | undefined => (existsSync(frontPath()) ? realpathSync(frontPath()) : undefined)

function nothingWritten(): number {
  err('ringfence: nothing written; use --yes to write the settings\n')
  return 126
}

/** A step left for the user is printed, but is not a failure of the installation. */
function closing(test: HookTest, json: boolean): number {
  if (!json) err(lines(test))
  return test.status === 'broken' ? 1 : 0
}

const flagsOf = ({ sandboxed, wrap, config, policy }: HookValues): readonly string[] => [
  ...(sandboxed ? ['--sandboxed'] : []),
  ...(wrap ? ['--wrap'] : []),
  ...(config === undefined ? [] : ['--config', shellQuote(resolve(config))]),
  ...(policy === undefined ? [] : ['--policy', shellQuote(resolve(policy))]),
]

/** A settings file that is a symbolic link (dotfiles) stays one. */
function write(file: string, text: string): void {
  try {
    mkdirSync(dirname(file), { recursive: true, mode: 0o700 })
    writeAtomically(existsSync(file) ? realpathSync(file) : file, text)
  } catch (cause) {
    throw new SandboxError('invalid-config', `\`${file}\` cannot be written: ${(cause as Error).message}`, {
      cause,
      hint: 'nothing was changed; you must own the directory',
    })
  }
}
