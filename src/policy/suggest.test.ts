import { expect, test } from 'vitest'
import { suggestFrom } from './suggest.ts'

const refused = (seq: number, host: string, count?: number) => ({
  event: 'SandboxViolation',
  seq,
  host,
  details: `connect to ${host}:443 (connect): \`${host}\` is not an allowed host`,
  ...(count === undefined ? {} : { count }),
})

test('a host is suggested by how often it was refused, also if one record stands for several refusals', () => {
  const suggestions = suggestFrom([
    refused(1, 'a.example'),
    refused(2, 'b.example'),
    refused(3, 'b.example', 40),
  ])
  expect(suggestions).toMatchObject([
    { kind: 'host', why: 'it was refused 41 times because it is not allowed', seqs: [2, 3] },
  ])
})
