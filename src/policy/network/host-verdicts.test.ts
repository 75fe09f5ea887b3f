import { expect, test } from 'vitest'
import { hostVerdicts } from './host-verdicts.ts'

test.each<[string, 'allow' | 'deny', RegExp]>([
  ['pypi.org', 'allow', /judged when it is connected to/],
  ['pypi.org:8443', 'allow', /judged/],
  ['*.example.com', 'allow', /matches/],
  ['@registries', 'allow', /matches/],
  ['93.184.215.14', 'allow', /public address/],
  ['169.254.169.254', 'deny', /cloud metadata/],
  ['metadata.google.internal', 'deny', /cloud metadata/],
  ['10.0.0.1', 'deny', /private address/],
  ['127.0.0.1:8080', 'deny', /loopback address/],
  ['[::1]', 'deny', /loopback address/],
  ['[::1]:80', 'deny', /loopback address/],
  ['localhost', 'deny', /internal name/],
])('%s: %s', (host, verdict, reason) => {
  const [answer] = hostVerdicts([host], [])
  expect(answer).toMatchObject({ host, verdict })
  expect(answer?.reason).toMatch(reason)
})

test('addresses that the operator opened are allowed', () => {
  expect(hostVerdicts(['10.0.0.1', '10.1.0.1'], ['10.0.0.0/16']).map(({ verdict }) => verdict)).toEqual([
    'allow',
    'deny',
  ])
})
