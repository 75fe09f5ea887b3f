import { execFile } from 'node:child_process'
import { chmodSync, chownSync, cpSync, mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import type { Row } from '../../src/prove/suite.ts'
import { packageRoot } from './world.ts'

const run = promisify(execFile)

export type Report = {
  readonly rows: readonly Row[]
  readonly uses: readonly { readonly name: string; readonly ok: boolean; readonly said: string }[]
}

/** An unprivileged uid that is in no user database and no group. */
export const ORDINARY = 54321

/** Runs the suite as a separate program, from a directory that any user can read. */
export async function suiteAs(uid: number | undefined, ...more: readonly string[]): Promise<Report> {
  const copy = mkdtempSync(join(tmpdir(), 'rf-suite-'))
  const root = packageRoot()
  const state = join(root, 'dist', 'test', 'state')
  try {
    for (const part of ['package.json', 'dist/guest', 'dist/test'])
      cpSync(join(root, part), join(copy, part), { recursive: true, filter: (path) => path !== state })
    const own = [join(copy, 'home'), join(copy, 'dist', 'test', 'state')]
    for (const dir of own) {
      mkdirSync(dir)
      if (uid !== undefined) chownSync(dir, uid, uid)
    }
    chmodSync(copy, 0o755)
    const env = { PATH: '/usr/local/bin:/usr/bin:/bin', HOME: own[0], LANG: 'C.UTF-8' }
    const as = uid === undefined ? [] : ['--reuid', `${uid}`, '--regid', `${uid}`, '--clear-groups']
    const args = [...as, process.execPath, join(copy, 'dist/test/conformance.js'), '--json', ...more]
    const { stdout } = await run('setpriv', args, { cwd: copy, env, maxBuffer: 1e8 }).catch(
      (error: { stdout?: string; message: string }) => {
        if (error.stdout) return { stdout: error.stdout }
        throw new Error(error.message)
      },
    )
    return JSON.parse(stdout) as Report
  } finally {
    rmSync(copy, { recursive: true, force: true })
  }
}
