import { spawn } from 'node:child_process'
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import ts from 'typescript'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { UsageLog } from './usage.ts'

/** Several real processes write to one usage log that is compacted all the time. */

const MOST_BYTES = 1500
let root = ''
let script = ''

beforeAll(() => {
  root = mkdtempSync(join(tmpdir(), 'rf-usage-'))
  const src = join(import.meta.dirname, '..')
  const models = readdirSync(join(src, 'model'), { recursive: true, encoding: 'utf8' }).filter((name) =>
    /^[^.]+\.ts$/.test(name),
  )
  const files = [
    'skills/usage.ts',
    'audit/lock.ts',
    'host/files/atomic-file.ts',
    ...models.map((m) => `model/${m}`),
  ]
  for (const file of files) {
    const target = join(root, 'js', file.replace(/ts$/, 'js'))
    mkdirSync(dirname(target), { recursive: true })
    const compilerOptions = {
      target: ts.ScriptTarget.ES2022,
      module: ts.ModuleKind.ESNext,
      rewriteRelativeImportExtensions: true,
    }
    writeFileSync(
      target,
      ts.transpileModule(readFileSync(join(src, file), 'utf8'), { compilerOptions }).outputText,
    )
  }
  writeFileSync(join(root, 'js', 'package.json'), '{"type":"module"}')
  script = join(root, 'js', 'child.js')
  // Acknowledges each run after it is recorded.
  writeFileSync(
    script,
    `import { writeSync } from 'node:fs'
    import { UsageLog } from './skills/usage.js'
    const [home, agent, count] = process.argv.slice(2)
    const log = new UsageLog(home, { mostBytes: ${MOST_BYTES} })
    for (let n = 0; n < Number(count); n++) {
      log.add({ skill: 's', fuel: 1, duration_ms: 0.5, violations: 0, ok: true, agent })
      writeSync(1, '.')
    }`,
  )
})
afterAll(() => rmSync(root, { recursive: true, force: true }))

function child(home: string, agent: string, count: number) {
  const started = spawn(process.execPath, [script, home, agent, String(count)], {
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  let acknowledged = 0
  started.stdout.on('data', (chunk: Buffer) => {
    acknowledged += chunk.length
  })
  const closed = new Promise<number>((resolve) => started.once('close', () => resolve(acknowledged)))
  return { closed, started, acknowledged: () => acknowledged }
}

const runsOf = (log: UsageLog, agent?: string): number => log.read(agent)[0]?.runs ?? 0

it('neither loses nor duplicates runs of concurrent processes, and readers never see a smaller sum', async () => {
  const home = join(root, 'state')
  const log = new UsageLog(home)
  const children = ['a', 'b', 'c'].map((agent) => child(home, agent, 100))
  let [over, seen] = [false, 0]
  const all = Promise.all(children.map(({ closed }) => closed)).finally(() => {
    over = true
  })
  while (!over) {
    const now = runsOf(log)
    expect(now).toBeGreaterThanOrEqual(seen)
    seen = now
    await new Promise((resolve) => setTimeout(resolve, 2))
  }
  expect(await all).toEqual([100, 100, 100])
  for (const agent of ['a', 'b', 'c']) expect(runsOf(log, agent)).toBe(100)
  expect(log.read()).toEqual([{ skill: 's', runs: 300, fuel: 300, duration_ms: 150, violations: 0 }])
  expect(statSync(join(home, 'skills', 'usage.jsonl')).size).toBeLessThan(MOST_BYTES + 200)
}, 60_000)

it('keeps acknowledged runs when writers are killed', async () => {
  const home = join(root, 'killed')
  const log = new UsageLog(home, { mostBytes: MOST_BYTES })
  let least = 0
  for (let round = 0; round < 6; round++) {
    const { started, closed, acknowledged } = child(home, 'a', 100_000)
    while (acknowledged() < 20 + 7 * round) await new Promise((resolve) => setTimeout(resolve, 2))
    started.kill('SIGKILL')
    least += await closed
    // Recorded but not yet acknowledged: at most one per writer.
    expect(runsOf(log, 'a')).toBeGreaterThanOrEqual(least)
    expect(runsOf(log, 'a')).toBeLessThanOrEqual(least + round + 1)
  }
  log.add({ skill: 's', fuel: 1, duration_ms: 1, violations: 0, ok: true, agent: 'b' })
  expect(runsOf(log, 'b')).toBe(1)
}, 60_000)
