import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { packageRoot } from '../conformance/world.ts'

/** The real coding agents, installed from npm by the set-up of the tests. */

const modules = join(packageRoot(), 'test', 'adapters', 'clients', 'node_modules')
/** PLATFORM: the launchers of Claude Code and opencode want a script at installation; the programs lie beside them. */
export const claudeProgram = join(modules, '@anthropic-ai', 'claude-code-linux-x64', 'claude')
export const opencodeProgram = join(modules, 'opencode-linux-x64', 'bin', 'opencode')
export const codexProgram = join(modules, '.bin', 'codex')
export const geminiProgram = join(modules, '.bin', 'gemini')

/** PLATFORM: the packages hold programs for x64; elsewhere these tests are skipped by name. */
export const areInstalled = [claudeProgram, opencodeProgram, codexProgram, geminiProgram].every((file) =>
  existsSync(file),
)
