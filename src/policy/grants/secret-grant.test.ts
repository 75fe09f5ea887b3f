import { describe, expect, it } from 'vitest'
import { parseSecretGrant } from './secret-grant.ts'

describe('parseSecretGrant', () => {
  it.each([
    [
      'T=HOST_T@api.example.com',
      { name: 'T', variable: 'HOST_T', host: 'api.example.com', port: 443, scheme: 'https' },
    ],
    [
      'T=T@Api.Example.com.:8443',
      { name: 'T', variable: 'T', host: 'api.example.com', port: 8443, scheme: 'https' },
    ],
    ['T=T@https://a.example', { name: 'T', variable: 'T', host: 'a.example', port: 443, scheme: 'https' }],
    ['T=T@http://a.example', { name: 'T', variable: 'T', host: 'a.example', port: 80, scheme: 'http' }],
  ])('reads %s', (text, grant) => {
    expect(parseSecretGrant(text)).toEqual(grant)
  })

  it.each([
    '',
    'T',
    'T=V',
    'T=V@',
    '=V@a.example',
    'T=@a.example',
    'T=V@*.example',
    'T=V@a.example/path',
    'T=V@a.example:0',
    'T=V@a.example:70000',
    'T=V@127.0.0.1',
    'T=V@[::1]',
    'T=V@u@a.example',
    'T=sk-live-value with blanks@a.example',
    '1T=V@a.example',
    'T=V@ftp://a.example',
  ])('refuses %j without repeating it', (text) => {
    expect(() => parseSecretGrant(text)).toThrow('a secret is not written as `NAME=ENVVAR@HOST`')
  })
})
