import { randomBytes } from 'node:crypto'
import { describe, expect, it } from 'vitest'
import { decrypt, encrypt } from './authenticated-cipher.ts'

const key = randomBytes(32)
const text = Buffer.from('a secret')

describe('the authenticated cipher', () => {
  it('decrypts what it encrypted, and never produces the same bytes twice', () => {
    expect(decrypt(key, encrypt(key, text, 'row 1'), 'row 1')).toEqual(text)
    expect(encrypt(key, text)).not.toEqual(encrypt(key, text))
  })

  it('rejects another key or name', () => {
    expect(decrypt(randomBytes(32), encrypt(key, text))).toBeUndefined()
    expect(decrypt(key, encrypt(key, text, 'row 1'), 'row 2')).toBeUndefined()
    expect(decrypt(key, encrypt(key, text, 'row 1'))).toBeUndefined()
  })

  it('detects every changed byte and every shorter copy', () => {
    const sealed = encrypt(key, text)
    for (let at = 0; at < sealed.length; at++) {
      const changed = Buffer.from(sealed)
      changed[at] = (changed[at] as number) ^ 1
      expect(decrypt(key, changed)).toBeUndefined()
      expect(decrypt(key, sealed.subarray(0, at))).toBeUndefined()
    }
  })

  it('rejects a shortened tag, which would be easier to forge', () => {
    const empty = encrypt(key, Buffer.alloc(0))
    expect(decrypt(key, empty)).toEqual(Buffer.alloc(0))
    expect(decrypt(key, empty.subarray(0, 16))).toBeUndefined()
  })
})
