import type { IncomingMessage } from 'node:http'
import { expect, test } from 'vitest'
import { subjectOf } from './request-owner.ts'

const ID = 'sb_0123456789abcdef0123'
const sandbox = { kind: 'sandbox', id: ID }

const asked = (method: string, url: string, headers: IncomingMessage['headers'] = {}): IncomingMessage =>
  ({ method, url, headers: { host: 'localhost:4200', ...headers } }) as IncomingMessage

test.each<[string, string, IncomingMessage['headers'], unknown]>([
  ['GET', `/v1/sandboxes/${ID}`, {}, sandbox],
  ['POST', `/v1/sandboxes/${ID}/exec?x=/v1/sandboxes`, {}, sandbox],
  ['DELETE', '/sandboxes/sb0123456789abcdef0123', {}, sandbox],
  ['POST', '/v2/sandboxes/sb0123456789abcdef0123/connect', {}, sandbox],
  ['GET', '/anything', { host: '8080-sb0123456789abcdef0123.example.com' }, sandbox],
  ['POST', '/process.Process/Start', { 'e2b-sandbox-id': 'sb0123456789abcdef0123' }, sandbox],
  ['GET', '/files?path=a', { 'x-access-token': `rfs_0123456789abcdef0123_${'0'.repeat(48)}` }, sandbox],
  ['GET', `/v1/events?after=3&sandbox_id=${ID}`, {}, sandbox],
  ['GET', '/v1/events', {}, undefined],
  ['POST', '/v1/sandboxes', {}, { kind: 'create' }],
  ['POST', '/sandboxes', {}, { kind: 'create' }],
  ['GET', '/v1/sandboxes', {}, undefined],
  ['POST', '/v1/approvals/ap_1', {}, { kind: 'approval', id: 'ap_1' }],
  ['GET', '/v1/approvals/ap_1', {}, undefined],
  ['GET', '/v1/volumes/a%20b/files', {}, { kind: 'volume', id: 'a b' }],
  ['PUT', '/volumecontent/vol_1/file', {}, { kind: 'volume', id: 'vol_1' }],
  ['GET', '/v1/volumes', {}, undefined],
  ['POST', '/v1/volumes', { authorization: 'Bearer x' }, { kind: 'caller', name: 'Bearer x' }],
  ['POST', '/v2/templates/t/builds/b', {}, { kind: 'caller', name: 'template builds' }],
  ['POST', '/mcp', { 'mcp-session-id': '0123456789abcdef.x' }, { kind: 'session', node: '0123456789abcdef' }],
  ['POST', '/mcp', { 'x-api-key': 'k' }, { kind: 'caller', name: 'k' }],
  ['GET', '/files?path=a&signature=v1_x', {}, { kind: 'signed' }],
  ['GET', '/%66iles?signature=v1_x', {}, { kind: 'signed' }],
  ['GET', '/files?path=a', {}, undefined],
  ['GET', '/v1/audit', {}, undefined],
  ['GET', '/healthz', {}, undefined],
])('finds the owner of %s %s', (method, url, headers, expected) => {
  expect(subjectOf(asked(method, url, headers))).toEqual(expected)
})
