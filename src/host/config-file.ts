import { readFileSync } from 'node:fs'
import { resolve } from 'node:path'
import { type Config, configShape } from '../model/config.ts'
import { SandboxError } from '../model/errors.ts'
import { parseToml } from './toml.ts'

/** Reads one configuration file, TOML or JSON. An invalid file aborts the start; rules are never skipped. */
export const loadConfig = async (file: string): Promise<Config> => parseConfig(file, readOrRefuse(file))

/** Parses a text that is, or will be, the content of that file. */
export async function parseConfig(file: string, text: string): Promise<Config> {
  try {
    const data: unknown = file.endsWith('.json') ? JSON.parse(text) : await parseToml(text)
    return configShape.parse(data, '')
  } catch (cause) {
    const said = (cause as Error).message.split('\n')[0] ?? ''
    const hint = cause instanceof SandboxError && cause.hint ? cause.hint : 'see `ringfence policy schema`'
    throw new SandboxError('invalid-config', `${file}: ${said}`, { cause, hint })
  }
}

function readOrRefuse(file: string): string {
  try {
    return readFileSync(resolve(file), 'utf8')
  } catch (cause) {
    throw new SandboxError(
      'invalid-config',
      `cannot read ${file}: ${(cause as NodeJS.ErrnoException).code}`,
      {
        cause,
        hint: 'name an existing file with --config',
      },
    )
  }
}
