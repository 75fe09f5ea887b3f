import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { parse } from 'smol-toml'
import { expect, test } from 'vitest'
import { packageRoot } from '../conformance/world.ts'

/** The configurations that people copy: each parses, has its client's own shape, and starts what we ship. */
const page = readFileSync(join(packageRoot(), 'README.md'), 'utf8')

const block = (client: string): { readonly kind: string; readonly text: string } => {
  const from = page.indexOf(`**${client}**`)
  const [, kind = '', text = ''] = /```(json|toml)\n([\s\S]*?)```/.exec(page.slice(from)) ?? []
  return { kind, text }
}
const json = (client: string): unknown => JSON.parse(block(client).text)
const entry = { command: 'npx', args: ['ringfence', 'mcp'] }

test.each([
  ['Claude Code', { mcpServers: { ringfence: { type: 'stdio', ...entry } } }],
  ['Cursor', { mcpServers: { ringfence: entry } }],
  ['Gemini CLI', { mcpServers: { ringfence: { ...entry, timeout: 600_000 } } }],
  ['VS Code', { servers: { ringfence: { type: 'stdio', ...entry } } }],
])('the documented configuration for %s is valid', (client, wanted) => {
  expect(json(client)).toEqual(wanted)
})

test('the documented configuration for Codex is valid', () => {
  expect(block('Codex').kind).toBe('toml')
  expect(parse(block('Codex').text)).toEqual({
    mcp_servers: { ringfence: { ...entry, startup_timeout_sec: 30 } },
  })
})

test('the documented command is the one of the package', () => {
  const { name, bin } = JSON.parse(readFileSync(join(packageRoot(), 'package.json'), 'utf8'))
  expect(name).toBe('ringfence')
  expect(Object.keys(bin)).toEqual(['ringfence'])
})
