import { expect, test } from 'vitest'
import { assertPrivateFile } from './private-file.ts'

test.each([
  [0o600, 1000, 1000, true],
  [0o400, 1000, 1000, true],
  [0o700, 1000, 1000, true],
  [0o640, 1000, 1000, false],
  [0o604, 1000, 1000, false],
  [0o602, 1000, 1000, false],
  [0o620, 1000, 1000, false],
  [0o644, 0, 0, false],
  [0o640, 0, 0, false],
  [0o640, 0, 1000, true],
  [0o440, 0, 1000, true],
  [0o660, 0, 1000, false],
  [0o644, 0, 1000, false],
  [0o640, 0, undefined, true],
])('mode %o of user %i, read by %s: %s', (mode, uid, reader, isFine) => {
  const check = (): void => assertPrivateFile('the key', { file: '/a', mode: 0o100000 | mode, uid, reader })
  if (isFine) expect(check).not.toThrow()
  else expect(check).toThrow('the key is not private: other users may read or write `/a`')
})
