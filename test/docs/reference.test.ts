import { execFileSync, spawnSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { describe, expect, test } from 'vitest'
import { ERRORS } from '../../src/model/errors.ts'

const CLI = 'dist/cli/ringfence.cjs'

describe('generated references', () => {
  test('are up to date', () => {
    const { status, stderr } = spawnSync(process.execPath, ['scripts/reference.mjs', '--check'], {
      encoding: 'utf8',
    })
    expect(stderr).toBe('')
    expect(status).toBe(0)
  })

  test('explain every code in `ringfence help errors`', () => {
    const text = execFileSync(process.execPath, [CLI, 'help', 'errors'], { encoding: 'utf8' })
    const page = readFileSync('docs/errors.md', 'utf8')
    for (const [code, { status }] of Object.entries(ERRORS)) {
      expect(text, code).toMatch(new RegExp(`^${code} +exit \\d+ +HTTP ${status}\\n  \\S.+\\.$`, 'm'))
      expect(page, code).toContain(`| \`${code}\` | ${status} |`)
    }
  })
})
