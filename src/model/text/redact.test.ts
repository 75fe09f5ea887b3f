import { describe, expect, test } from 'vitest'
import { redact } from './redact.ts'

const M = '«redacted»'
const JWT = 'eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U'
// Concatenated here so that no secret scanner reports this file.
const GITHUB = `ghp_${'a1B2'.repeat(9)}`
const KEY = `-----BEGIN OPENSSH ${'PRIVATE'} KEY-----\nb3BlbnNzaC1rZXk\nAAAA\n-----END OPENSSH ${'PRIVATE'} KEY-----`

describe('credentials are redacted', () => {
  test.each([
    ['sk-abcdefghijklmnop1234', M],
    ['sk-ant-api03-abcdefghijklmnop-1234_AA', M],
    [`curl -H x ${GITHUB} y`, `curl -H x ${M} y`],
    [`github_pat_${'x'.repeat(30)}`, M],
    [`glpat-${'x'.repeat(20)}`, M],
    [`npm_${'x'.repeat(36)}`, M],
    [`xoxb-${'1'.repeat(12)}-abc`, M],
    ['AKIAIOSFODNN7EXAMPLE', M],
    [`AIza${'x'.repeat(35)}`, M],
    [`a ${JWT} b`, `a ${M} b`],
    [`echo '${KEY}' > f`, `echo '${M}' > f`],
    ['-----BEGIN RSA PRIVATE KEY-----\ncut off', M],
    ['curl -H "Authorization: Bearer abc.def" h', `curl -H "Authorization: Bearer ${M}" h`],
    ['authorization:basic dXNlcjpwYXNz', `authorization:basic ${M}`],
    ['PASSWORD=hunter2 psql', `PASSWORD=${M} psql`],
    ['export AWS_SECRET_ACCESS_KEY=abc/def+g', `export AWS_SECRET_ACCESS_KEY=${M}`],
    ['OPENAI_API_KEY=x node a.js', `OPENAI_API_KEY=${M} node a.js`],
    ['tool --token abc --verbose', `tool --token ${M} --verbose`],
    ['tool --password=abc', `tool --password=${M}`],
    ['git clone https://me:pw@host/x.git', `git clone https://me:${M}@host/x.git`],
    ['psql postgresql://u:p%40w@db:5432/x', `psql postgresql://u:${M}@db:5432/x`],
    ['PASSWORD="hunter2" psql', `PASSWORD=${M} psql`],
    ["export API_KEY='two words' && x", `export API_KEY=${M} && x`],
    ['tool --token "abc def" -v', `tool --token ${M} -v`],
  ])('%s', (text, expected) => {
    expect(redact(text)).toBe(expected)
  })

  test('all of them, in any number', () => {
    const out = redact(`${GITHUB} TOKEN=a1 ${GITHUB} https://u:p@h SECRET=b2 ${JWT}`)
    for (const secret of [GITHUB, 'a1', 'u:p@', 'b2', JWT]) expect(out).not.toContain(secret)
  })
})

describe('ordinary text is kept', () => {
  test.each([
    '',
    'ls -la /home/user/src',
    'git commit -m "rotate the token and the password"',
    'git clone https://github.com/a/b.git',
    'git clone git@github.com:a/b.git',
    'curl https://host:8443/@scope/name',
    'npm_config_registry=https://r node x',
    'task-force-abcdefghijklmnopqrstuvwx',
    'sk-short',
    'echo eyJ.eyJ.x',
    '-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----',
    'sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08',
    'grep -r password src',
    'Größe 大小 🦊',
  ])('%s', (text) => {
    expect(redact(text)).toBe(text)
  })

  test('redacting twice changes nothing', () => {
    const once = redact(`TOKEN=abc ${GITHUB} https://u:p@h`)
    expect(redact(once)).toBe(once)
  })
})

// SECURITY: an agent chooses the text, and the main thread reads it. A pattern that scans a long word again from each of
// its letters needs minutes for this; the test's timeout ends it.
describe('no text takes long', () => {
  test.each([
    'token',
    'a.',
    'eyJ-',
    'sk-',
    'password=',
    '-----BEGIN PRIVATE KEY',
    'http://a:',
    '--token ',
    'A',
    "TOKEN='",
    'eyJaaaaaaaa.',
  ])('%s again and again', (part) => {
    expect(redact(part.repeat(Math.ceil(2 ** 20 / part.length))).length).toBeGreaterThan(0)
  })
})
