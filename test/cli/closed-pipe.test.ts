import { spawnSync } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, expect, test } from 'vitest'
import { cliWords } from './program.ts'

/** A reader that closes the pipe (`| head -1`) ends a command quietly, also a command with endless output. */

const base = mkdtempSync(join(tmpdir(), 'rf-pipe-'))
afterAll(() => rmSync(base, { recursive: true, force: true }))
const ringfence = cliWords()

test.each(['--help', 'doctor --json', 'policy schema', 'skill list', 'audit tail --follow'])(
  '`%s` ends quietly when its reader closes the pipe',
  (args) => {
    // The reader exits before the first byte: the worst case of `| head`.
    const line = `${ringfence} run -c true; (sleep 0.1; exec ${ringfence} ${args}) | true; echo "\${PIPESTATUS[0]}"`
    const { stdout, stderr } = spawnSync('/bin/bash', ['-c', line], {
      env: { HOME: base, PATH: process.env.PATH, RINGFENCE_HOME: join(base, 'state') },
      encoding: 'utf8',
    })
    expect(stderr).toBe('')
    expect(['0', '141']).toContain(stdout.trim())
  },
)
