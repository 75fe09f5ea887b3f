import { spawn } from 'node:child_process'
import { chmodSync, cpSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { packageRoot } from '../conformance/world.ts'
import { type Process, startProcess } from '../server/process.ts'
import { commandLines, PAGES, pageText } from './pages.ts'

/**
 * Every `ringfence` line of the documentation, as printed, in a project and a state directory of its own for each page. A line
 * that cannot run in a test says so in a comment above its block: `<!-- not run: reason -->`.
 */

const base = mkdtempSync(join(tmpdir(), 'rf-docs-'))
const bin = join(base, 'bin')
let server: Process

beforeAll(async () => {
  mkdirSync(bin)
  const program = join(packageRoot(), 'dist', 'cli', 'ringfence.cjs')
  script(join(bin, 'ringfence'), `exec '${process.execPath}' '${program}' "$@"`)
  // What npx itself does with an installed package is tested in test/package.
  script(join(bin, 'npx'), 'exec "$@"')
  const home = join(base, 'server')
  mkdirSync(home)
  server = await startProcess(home)
}, 60_000)
afterAll(async () => {
  server?.child.kill('SIGTERM')
  await server?.ended
  rmSync(base, { recursive: true, force: true })
})

function script(file: string, line: string): void {
  writeFileSync(file, `#!/bin/sh\n${line}\n`)
  chmodSync(file, 0o755)
}

/** Files that the examples assume. */
function project(name: string): string {
  const home = join(base, name)
  const dir = join(home, 'project')
  mkdirSync(join(dir, '.git', 'hooks'), { recursive: true })
  mkdirSync(join(home, 'data'))
  writeFileSync(join(home, 'data', 'a.csv'), 'b\na\n')
  writeFileSync(join(dir, 'README.md'), 'colour\n')
  writeFileSync(join(dir, 'package.json'), '{"name":"x","scripts":{"test":"true"}}\n')
  writeFileSync(
    join(dir, 'Makefile'),
    "all:\n\tprintf '#!/bin/sh\\necho made\\n' > a.out\n\tchmod +x a.out\n",
  )
  for (const program of ['agent', 'codemod', 'job']) script(join(dir, program), 'echo hello > made-by-me')
  cpSync(join(packageRoot(), 'examples'), join(dir, 'examples'), { recursive: true })
  cpSync(join(packageRoot(), 'examples', 'skills', 'greet'), join(dir, 'my-skill'), { recursive: true })
  return dir
}

/** Lines that show a refusal, with their exit code. */
const EXITS: readonly (readonly [string, number])[] = [
  ["ringfence run -c 'echo ./x > .git/hooks/pre-commit'", 126],
  ["ringfence check command 'find . -delete'", 3],
  ["ringfence check command --explain 'git push'", 3],
]

/** Names that the pages invent, and what an earlier line of the page printed in their place. */
const EXAMPLES: readonly (readonly [string, RegExp])[] = [
  ['rv_0123456789ab', /rv_[0-9a-f]{20}/g],
  ['key_…', /key_[0-9a-f]{20}/g],
  ['KEY', /(?<=with the key )[\w-]{43}/g],
]

const filledIn = (command: string, printed: string): string =>
  EXAMPLES.reduce((line, [name, form]) => line.replace(name, printed.match(form)?.at(-1) ?? name), command)

type Ran = { readonly code: number | null; readonly output: string }

function run(command: string, cwd: string): Promise<Ran> {
  const home = join(cwd, '..')
  const child = spawn('bash', ['-c', command], {
    cwd,
    env: {
      PATH: `${bin}:${process.env.PATH}`,
      HOME: home,
      RINGFENCE_HOME: join(home, 'state'),
      MY_TOKEN: 'not-a-real-token',
      // Only lines about sandboxes of a server contact one.
      ...(command.includes(' sandbox ') && { RINGFENCE_URL: server.url, RINGFENCE_API_KEY: server.key }),
    },
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  let output = ''
  child.stdout.on('data', (chunk) => (output += chunk))
  child.stderr.on('data', (chunk) => (output += chunk))
  return new Promise((resolve) => child.once('close', (code) => resolve({ code, output })))
}

const lines = PAGES.map((page) => ({ page, commands: commandLines(pageText(page)) }))

describe.concurrent('the command lines of', () => {
  for (const { page, commands } of lines.filter((one) => one.commands.some(({ notRun }) => !notRun)))
    test.concurrent(`${page} run as printed`, async () => {
      const cwd = project(page.replace(/\W/g, '-'))
      let printed = ''
      for (const { line, command } of commands.filter(({ notRun }) => notRun === undefined)) {
        const { code, output } = await run(filledIn(command, printed), cwd)
        const wanted = EXITS.find(([start]) => command.replace(/^npx /, '').startsWith(start))?.[1] ?? 0
        expect(code, `${page}:${line}: ${command}\n${output}`).toBe(wanted)
        printed += output
      }
    }, 120_000)
})

test('lines that are not run have a reason, and most lines run', () => {
  const all = lines.flatMap(({ commands }) => commands)
  const notRun = all.filter((one) => one.notRun !== undefined)
  for (const { command, notRun: reason } of notRun) expect(reason?.length, command).toBeGreaterThan(10)
  expect(all.length - notRun.length).toBeGreaterThan(30)
})
