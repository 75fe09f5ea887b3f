import { existsSync, readFileSync } from 'node:fs'
import { resolve } from 'node:path'
import type { HookAgent } from '../../adapters/hooks/hook.ts'
import { projectSettings, userSettings } from '../../adapters/hooks/settings.ts'
import type { Ringfence } from '../../compose/compose.ts'
import { SandboxError } from '../../model/errors.ts'

/** Path of an agent's settings file, of this user or of the project in the working directory. */
export const settingsFile = (agent: HookAgent, { home, env, cwd }: Ringfence, project: boolean): string =>
  resolve(project ? projectSettings(agent, cwd) : userSettings(agent, { home, env }))

/** The parsed settings file; undefined if it does not exist. */
export function settingsIn(file: string): unknown {
  if (!existsSync(file)) return undefined
  try {
    return JSON.parse(readFileSync(file, 'utf8'))
  } catch (cause) {
    throw new SandboxError('invalid-config', `\`${file}\` is not JSON`, {
      cause,
      hint: 'fix the file first; it was not changed',
    })
  }
}
