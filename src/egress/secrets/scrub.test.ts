import { randomBytes } from 'node:crypto'
import { describe, expect, it } from 'vitest'
import { Secret } from '../../host/secrets/secret.ts'
import type { Rewrite } from '../http/body.ts'
import { SoughtValue } from './forms.ts'
import { Search } from './scrub.ts'

/** Every character that some encoding escapes. */
const VALUE = `ab/cd+ef==Zz"<q>&0123 it's_{\\}`
const PLACEHOLDER = 'rfs_x'

const searchFor = (...values: readonly string[]): Search =>
  new Search(values.map((value) => new SoughtValue(new Secret(value), PLACEHOLDER)))

const scrubberFor = (value: string): Rewrite => searchFor(value).body()

const through = (scrubber: Rewrite, pieces: readonly Buffer[]): string =>
  Buffer.concat([...pieces.map((piece) => scrubber.push(piece)), scrubber.end()]).toString('latin1')

const bytesOf = (text: string): readonly Buffer[] => [...Buffer.from(text)].map((byte) => Buffer.from([byte]))

const each = (text: string, encode: (char: string, code: number) => string): string =>
  Array.from(text, (char) => encode(char, char.codePointAt(0) as number)).join('')

const hexOf = (code: number, digits: number): string => code.toString(16).padStart(digits, '0')

const inLines = (text: string, width: number, end: string): string =>
  text.replaceAll(new RegExp(`.{${width}}`, 'g'), (line) => line + end)

const base64 = (text: string): string => Buffer.from(text).toString('base64')
const json = (text: string): string => JSON.stringify(text).slice(1, -1)
const MARKUP: Readonly<Record<string, string>> = {
  '"': '&quot;',
  '&': '&amp;',
  '<': '&lt;',
  '>': '&gt;',
  "'": '&#039;',
  '=': '&equals;',
  '/': '&sol;',
}

const WRITTEN: readonly (readonly [how: string, text: string])[] = [
  ['itself', VALUE],
  ['JSON', json(VALUE)],
  ['JSON in JSON', json(json(VALUE))],
  ['JSON of PHP', json(VALUE).replaceAll('/', '\\/')],
  [
    'JSON for scripts',
    json(VALUE).replaceAll(/[<>&'+=]/g, (char) => `\\u${hexOf(char.charCodeAt(0), 4).toUpperCase()}`),
  ],
  ['JSON, escaped completely', each(VALUE, (_, code) => `\\u${hexOf(code, 4)}`)],
  ['JavaScript', each(VALUE, (_, code) => `\\x${hexOf(code, 2)}`)],
  ['a URL', encodeURIComponent(VALUE)],
  ['a URL in small letters', encodeURIComponent(VALUE).replaceAll(/%../g, (code) => code.toLowerCase())],
  ['a form', new URLSearchParams([['a', VALUE]]).toString().slice(2)],
  ['a URL, escaped completely', each(VALUE, (_, code) => `%${hexOf(code, 2)}`)],
  ['HTML with names', each(VALUE, (char) => MARKUP[char] ?? char)],
  ['HTML with decimal numbers', each(VALUE, (_, code) => `&#${code};`)],
  ['HTML with hexadecimal numbers', each(VALUE, (_, code) => `&#X${hexOf(code, 4)};`)],
  ['a shell word', VALUE.replaceAll(/\W/g, '\\$&')],
  ['hexadecimal', Buffer.from(VALUE).toString('hex')],
  ['base64', base64(VALUE)],
  ['base64 in lines', inLines(base64(`${'x'.repeat(50)}${VALUE}`), 76, '\r\n')],
  ['base64 in short lines', inLines(base64(VALUE), 4, '\n')],
  ['base64 in lines in JSON', json(inLines(base64(`u:${VALUE}`), 10, '\n'))],
  ['base64 in a URL', encodeURIComponent(base64(`usr:${VALUE}`))],
  ['base64 for URLs', Buffer.from(`user:${VALUE}`).toString('base64url')],
]

describe('a value is found', () => {
  it.each(WRITTEN)('as %s', (_, text) => {
    const said = `before ${text} after`
    const whole = through(scrubberFor(VALUE), [Buffer.from(said)])
    expect(whole).toMatch(/^before [\s\S]{0,90}rfs_x\S{0,7}\s{1,2}after$/)
    expect(through(scrubberFor(VALUE), bytesOf(said)), 'byte by byte').toBe(whole)
  })

  it('in any mixture of spellings, split anywhere', () => {
    const spellings: readonly ((char: string, code: number) => string)[] = [
      (char) => char,
      (_, code) => `%${hexOf(code, 2)}`,
      (_, code) => `\\u${hexOf(code, 4)}`,
      (_, code) => `&#${code};`,
    ]
    const random = randomBytes(200 * VALUE.length * 2)
    let at = 0
    for (let round = 0; round < 200; round++) {
      const text = each(VALUE, (char, code) => {
        const spelling = spellings[(random[at++] as number) % spellings.length]
        return spelling?.(char, code) ?? char
      })
      const split = (random[at++] as number) % text.length
      const pieces = [text.slice(0, split), text.slice(split)].map((piece) => Buffer.from(piece))
      expect(through(scrubberFor(VALUE), pieces), text).toBe('rfs_x')
    }
  })

  it('with letters that are not ASCII, also if the server takes them for latin1', () => {
    const value = 'pässwörd-🎉-long'
    const mojibake = Buffer.from(Buffer.from(value).toString('latin1')).toString()
    const asPython = value
      .replaceAll('ä', '\\u00e4')
      .replaceAll('ö', '\\u00f6')
      .replaceAll('🎉', '\\ud83c\\udf89')
    const inHtml = each(value, (char, code) => (code < 128 ? char : `&#${code};`))
    for (const text of [value, mojibake, asPython, inHtml, encodeURIComponent(value)])
      expect(through(scrubberFor(value), [Buffer.from(`<${text}>`)]), text).toBe('<rfs_x>')
  })

  it('if it is not UTF-8', () => {
    const value = Buffer.from([0xff, ...Buffer.from('abcdefgh'), 0xfe])
    const search = new Search([new SoughtValue(new Secret(value), PLACEHOLDER)])
    expect(through(search.body(), [Buffer.concat([value, Buffer.from('!%ffabcdefgh%FE')])])).toBe(
      'rfs_x!rfs_x',
    )
  })

  it('in names without regard to case', () => {
    const search = searchFor('Sk-Live-0123456789abcdef')
    expect(search.name('X-SK-LIVE-0123456789ABCDEF-y')).toBe('X-rfs_x-y')
    expect(search.text('sk-live-0123456789abcdef')).toBe('sk-live-0123456789abcdef')
  })

  it('next to another value and in place of a shorter one with the same beginning', () => {
    const [short, long] = ['abcdefgh', 'abcdefghij']
    const search = new Search(
      [short, long].map((value) => new SoughtValue(new Secret(value), `(${value.length})`)),
    )
    for (const pieces of [[Buffer.from(`${short}${long}${short}`)], bytesOf(`${short}${long}${short}`)])
      expect(through(search.body(), pieces)).toBe('(8)(10)(8)')
  })

  it('at the end of a response after something that began like a longer value', () => {
    const search = searchFor('0123456789', 'xx012345678901234567890123456789')
    expect(through(search.body(), bytesOf('xx0123456789'))).toBe('xxrfs_x')
  })
})

describe('a value that was replaced', () => {
  it('is found together with the one in its place, also from the middle of a response on', () => {
    const secret = new Secret('the-first-value')
    const scrubber = new Search([new SoughtValue(secret, PLACEHOLDER)]).body()
    const said = ['the-first-value the-sec', 'ond-value the-fir', 'st-value'].map((text) => Buffer.from(text))
    const first = scrubber.push(said[0] as Buffer)
    secret.replace('the-second-value')
    const rest = [scrubber.push(said[1] as Buffer), scrubber.push(said[2] as Buffer), scrubber.end()]
    expect(String(Buffer.concat([first, ...rest]))).toBe('rfs_x the-second-value rfs_x')
    expect(through(scrubber, [Buffer.from('the-second-value')])).toBe('rfs_x')
  })

  it('is kept up to a limit, and the same value again takes no place', () => {
    const secret = new Secret('value-number-0')
    const sought = new SoughtValue(secret, PLACEHOLDER)
    const isFound = (value: string): boolean => new Search([sought]).text(value) === PLACEHOLDER
    for (let index = 0; index < 20; index++) {
      secret.replace('value-number-0')
      expect(isFound('value-number-0')).toBe(true)
    }
    for (let index = 1; index <= 8; index++) {
      secret.replace(`value-number-${index}`)
      expect(isFound(`value-number-${index}`)).toBe(true)
    }
    expect(isFound('value-number-0')).toBe(true)
    secret.replace('value-number-9')
    expect(['value-number-9', 'value-number-1', 'value-number-0'].map(isFound)).toEqual([true, true, false])
  })

  it('is found until the sandbox ends, also if the secret was withdrawn', () => {
    const secret = new Secret('the-first-value')
    const sought = new SoughtValue(secret, PLACEHOLDER)
    secret.dispose()
    const search = new Search([sought])
    expect(search.text('the-first-value')).toBe('rfs_x')
    sought.wipe()
    expect(search.text('the-first-value')).toBe('the-first-value')
  })
})

describe('everything else', () => {
  it('is passed on byte for byte', () => {
    const near = [
      VALUE.slice(0, -1),
      base64(VALUE).slice(0, 30),
      json(VALUE).slice(0, 20),
      '\\u0061',
      '&#97;',
      '%61',
    ]
    const pieces = Array.from({ length: 400 }, (_, index) =>
      index % 2 === 0 ? randomBytes(index) : Buffer.from(near[index % near.length] as string),
    )
    expect(through(scrubberFor(VALUE), pieces)).toBe(Buffer.concat(pieces).toString('latin1'))
  })

  it('is held back only if it may become a value', () => {
    const scrubber = scrubberFor('abcdefgh')
    expect(String(scrubber.push(Buffer.from('data: hello\n\n')))).toBe('data: hello\n\n')
    expect(String(scrubber.push(Buffer.from('data: abcd')))).toBe('data: ')
    expect(String(scrubber.push(Buffer.from('xyz')))).toBe('abcdxyz')
    expect(String(scrubber.push(Buffer.from('abcdefg')))).toBe('')
    expect(String(scrubber.push(Buffer.from('h!')))).toBe('rfs_x!')
    expect(String(scrubber.end())).toBe('')
  })
})

describe('the time of a search', () => {
  const cpuOf = (text: string): number => {
    const scrubber = scrubberFor(VALUE)
    const before = process.cpuUsage()
    through(scrubber, [Buffer.from(text)])
    const { user, system } = process.cpuUsage(before)
    return user + system
  }

  it.each([
    ['of values', VALUE],
    ['of beginnings of values', VALUE.slice(0, -1)],
  ])('grows with the number %s, not with its square', (_, text) => {
    const some = `${text} `.repeat(10_000)
    cpuOf(some)
    expect(cpuOf(some.repeat(4)) / cpuOf(some)).toBeLessThan(9)
  })
})
