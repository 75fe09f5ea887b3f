import { inspect } from 'node:util'
import { describe, expect, it } from 'vitest'
import { Secret } from './secret.ts'

const VALUE = 'hunter2-hunter2'

describe('Secret', () => {
  it('prints as a placeholder in every form', () => {
    const secret = new Secret(VALUE)
    const holder = { secret, list: [secret] }
    const said = [
      `${secret}`,
      `${secret}`,
      String(secret),
      secret.toString(),
      JSON.stringify(holder),
      inspect(holder, { depth: 9, showHidden: true }),
      inspect(secret, { customInspect: false, showHidden: true }),
      Object.keys(secret).join(),
      JSON.stringify({ ...secret }),
      Object.getOwnPropertyNames(secret).join(),
    ].join('\n')
    expect(said).not.toContain('hunter2')
    expect(said).toContain('<redacted>')
    expect(JSON.stringify(secret)).toBe('"<redacted>"')
  })

  it('passes its bytes to a function, and zeroes them on dispose', () => {
    const secret = new Secret(VALUE)
    let kept: Buffer = Buffer.alloc(0)
    expect(
      secret.use((bytes) => {
        kept = bytes
        return bytes.toString()
      }),
    ).toBe(VALUE)
    // A separate buffer: no other data is in the same allocation.
    expect(kept.buffer.byteLength).toBe(VALUE.length)
    secret.dispose()
    expect(kept.every((byte) => byte === 0)).toBe(true)
    expect(secret.disposed).toBe(true)
    expect(() => secret.use(() => undefined)).toThrow('disposed')
    secret.dispose()
  })

  it('zeroes the old value when it is replaced', () => {
    const secret = new Secret(Buffer.from(VALUE))
    const old = secret.use((bytes) => bytes)
    secret.replace('another')
    expect(old.every((byte) => byte === 0)).toBe(true)
    expect(secret.use(String)).toBe('another')
  })
})
