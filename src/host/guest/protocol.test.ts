import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
// @ts-expect-error a plain script
import { generated } from '../../../scripts/protocol.mjs'

test.each(generated() as readonly (readonly [string, string])[])(
  '%s is up to date with guest/protocol.json; if not, run node scripts/protocol.mjs',
  (path, text) => expect(readFileSync(join(process.cwd(), path), 'utf8')).toBe(text),
)
