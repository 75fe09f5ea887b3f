import { execFile } from 'node:child_process'
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, it } from 'vitest'
import { packageRoot } from '../conformance/world.ts'
import { hasClang } from './compile-c.ts'

/** What the documentation of skills says, done by hand on a fresh account. */

const place = mkdtempSync(join(tmpdir(), 'rf-newcomer-'))
afterAll(() => rmSync(place, { recursive: true, force: true }))

const program = join(packageRoot(), 'dist', 'cli', 'ringfence.cjs')
const guide = readFileSync(join(packageRoot(), 'docs', 'skills.md'), 'utf8')

const ENV = { PATH: process.env.PATH, HOME: join(place, 'home'), RINGFENCE_HOME: join(place, 'state') }

type Done = { readonly code: number; readonly stdout: string; readonly stderr: string }
function ringfence(cwd: string, args: readonly string[]): Promise<Done> {
  return new Promise((resolve) =>
    execFile(process.execPath, [program, ...args], { cwd, env: ENV }, (error, stdout, stderr) =>
      resolve({ code: typeof error?.code === 'number' ? error.code : 0, stdout, stderr }),
    ),
  )
}

function skill(name: string, type: string, entry: string, code: string, more = ''): string {
  const dir = join(place, name)
  mkdirSync(dir, { recursive: true })
  writeFileSync(join(dir, entry), code)
  writeFileSync(
    join(dir, 'skill.toml'),
    `[skill]\nname = "${name}"\n[runtime]\ntype = "${type}"\nentry = "${entry}"\n${more}`,
  )
  return dir
}

describe('the first commands of docs/skills.md', { timeout: 120_000 }, () => {
  it('work as they are written', async () => {
    const commands = [...guide.matchAll(/^ringfence (skill .*)$/gm)].map(([, text = '']) => text.split(' '))
    expect(commands.length).toBeGreaterThanOrEqual(4)
    for (const command of commands.slice(0, 4)) {
      const done = await ringfence(packageRoot(), command)
      expect(done, command.join(' ')).toMatchObject({ code: 0 })
      if (command[1] === 'run') expect(JSON.parse(done.stdout)).toMatchObject({ ok: { rows: 3 } })
    }
  })

  it('have JavaScript that is valid in the oldest supported Node', async () => {
    const blocks = [...guide.matchAll(/```(?:ts|js)\n(.*?)```/gs)].map(([, code = '']) => code)
    expect(blocks.length).toBeGreaterThan(0)
    for (const [index, code] of blocks.entries()) {
      const file = join(place, `sample-${index}.mjs`)
      writeFileSync(file, code)
      const error = await new Promise<unknown>((resolve) =>
        execFile(process.execPath, ['--check', file], (failed) => resolve(failed)),
      )
      expect(error).toBeNull()
    }
    expect(guide).not.toMatch(/await using/)
  })
})

describe('the error of a failed skill', { timeout: 120_000 }, () => {
  it('in Node names its cause', async () => {
    const dir = skill('node-fails', 'node', 'main.mjs', "JSON.parse('{')\n")
    const { stdout } = await ringfence(place, ['skill', 'run', dir, '--json'])
    expect(JSON.parse(stdout).error.message).toMatch(/^the skill exited with code 1: SyntaxError: .*JSON/)
  })

  it('at the fuel limit 0 says that WebAssembly is disabled, and which file is not read', async () => {
    const config = join(place, 'none.toml')
    writeFileSync(config, '[sandbox]\nwasm_fuel_limit = 0\n')
    const cwd = join(place, 'project')
    mkdirSync(cwd, { recursive: true })
    const greet = join(packageRoot(), 'examples', 'skills', 'greet')
    const run = () => ringfence(cwd, ['skill', 'run', greet, '--config', config])
    const first = await run()
    expect(first).toMatchObject({ code: 124 })
    expect(first.stderr).toMatch(/WebAssembly is disabled: the fuel limit is 0/)
    expect(first.stderr).not.toMatch(/is not read/)
    writeFileSync(join(cwd, 'ringfence.toml'), '[sandbox]\nwasm_fuel_limit = 100000\n')
    expect((await run()).stderr).toMatch(/ringfence.toml in this directory is not read; use `--config/)
    expect(await ringfence(cwd, ['skill', 'run', greet, '--config', 'ringfence.toml'])).toMatchObject({
      code: 0,
    })
  })
})

it('inspect does not report a declared variable as undeclared', { timeout: 60_000 }, async () => {
  const code = 'console.log(process.env.CITY, process.env.OTHER, process.env.SET)\n'
  const dir = skill('city', 'node', 'main.mjs', code, '[capabilities]\nenv = ["CITY"]\n[env]\nSET = "1"\n')
  const { stdout } = await ringfence(place, ['skill', 'inspect', dir, '--json'])
  expect(JSON.parse(stdout)).toMatchObject({ undeclared: ['OTHER'], asks: { env: ['CITY'] } })
  const shown = await ringfence(place, ['skill', 'inspect', dir])
  expect(shown.stdout).toMatch(/set only with --grant 'EnvRead\(CITY\)'/)
})

describe('skill init', { timeout: 120_000 }, () => {
  it.each(['python', 'node', ...(hasClang ? ['c'] : [])])(
    'creates a skill in %s that runs with the printed commands',
    async (lang) => {
      const made = await ringfence(place, ['skill', 'init', `my-${lang}`, '--lang', lang, '--json'])
      const { next } = JSON.parse(made.stdout) as { readonly next: readonly string[] }
      for (const line of next) {
        const shell = line.replace(/^ringfence/, `"${process.execPath}" "${program}"`)
        const done = await new Promise<Done>((resolve) =>
          execFile('/bin/sh', ['-c', shell], { cwd: place, env: ENV }, (error, stdout, stderr) =>
            resolve({ code: typeof error?.code === 'number' ? error.code : 0, stdout, stderr }),
          ),
        )
        expect(done, line).toMatchObject({ code: 0 })
        if (line.includes('skill run')) expect(done.stdout).toBe('{"words":3}\n')
      }
    },
  )

  it('writes nothing into a directory with files, and names the languages', async () => {
    mkdirSync(join(place, 'taken'))
    writeFileSync(join(place, 'taken', 'notes.txt'), 'mine')
    expect(await ringfence(place, ['skill', 'init', 'taken', '--lang', 'c'])).toMatchObject({
      code: 2,
      stderr: expect.stringContaining('`taken` is not empty'),
    })
    expect(readdirSync(join(place, 'taken'))).toEqual(['notes.txt'])
    expect(await ringfence(place, ['skill', 'init', 'new', '--lang', 'cobol'])).toMatchObject({
      code: 2,
      stderr: expect.stringContaining('one of c, rust, assemblyscript, javascript-wasm, python, node'),
    })
  })
})
