import { execFile } from 'node:child_process'
import { chmodSync, chownSync, cpSync, mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { describe, expect, test } from 'vitest'
import { isFine, type Row } from './suite.ts'
import { packageRoot } from './world.ts'

const MINUTES = 60_000
const run = promisify(execFile)
type Report = {
  readonly rows: readonly Row[]
  readonly uses: readonly { readonly name: string; readonly ok: boolean; readonly said: string }[]
}

/** The suite as a program of its own, from a place that any user can read. */
async function suite(uid?: number): Promise<Report> {
  const place = mkdtempSync(join(tmpdir(), 'rf-suite-'))
  const home = join(place, 'home')
  const root = packageRoot()
  try {
    for (const part of ['package.json', 'dist/guest', 'dist/test'])
      cpSync(join(root, part), join(place, part), { recursive: true })
    mkdirSync(home)
    chmodSync(place, 0o755)
    if (uid !== undefined) chownSync(home, uid, uid)
    const env = { PATH: '/usr/local/bin:/usr/bin:/bin', HOME: home, LANG: 'C.UTF-8' }
    const args = [join(place, 'dist/test/conformance.js'), '--json']
    const as =
      uid === undefined
        ? [process.execPath, ...args]
        : [
            'setpriv',
            '--reuid',
            String(uid),
            '--regid',
            String(uid),
            '--clear-groups',
            process.execPath,
            ...args,
          ]
    const { stdout } = await run(as[0] as string, as.slice(1), { cwd: place, env, maxBuffer: 1e8 }).catch(
      (error: { stdout?: string; message: string }) => {
        if (error.stdout) return { stdout: error.stdout }
        throw new Error(error.message)
      },
    )
    return JSON.parse(stdout) as Report
  } finally {
    rmSync(place, { recursive: true, force: true })
  }
}

function judge(report: Report): void {
  expect(report.rows.filter((row) => !isFine(row))).toEqual([])
  expect(report.uses.filter((use) => !use.ok)).toEqual([])
  expect(report.rows.filter((row) => row.verdict === 'held').length).toBeGreaterThan(50)
}

const isRoot = process.getuid?.() === 0

describe('every claimed guarantee is proven on bubblewrap, and every attack succeeds without it', () => {
  test('as the user who runs the tests', { timeout: 5 * MINUTES }, async () => judge(await suite()))

  test.runIf(isRoot)('as an ordinary user', { timeout: 5 * MINUTES }, async () => judge(await suite(54321)))
})
