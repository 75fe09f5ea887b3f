import { describe, expect, test } from 'vitest'
import { probeGuest } from '../drivers/kvm-probe.ts'
import { cpioOf } from './cpio.ts'
import { unpackLz4 } from './lz4.ts'

describe('lz4', () => {
  const framed = (block: readonly number[]): Buffer => {
    const head = Buffer.alloc(8)
    head.writeUInt32LE(0x184c2102)
    head.writeUInt32LE(block.length, 4)
    return Buffer.concat([head, Buffer.from(block)])
  }

  test('literals and copies, including overlapping ones', () => {
    // `ab`, then eight bytes from two back, then `!` as the last literal.
    expect(unpackLz4(framed([0x24, 0x61, 0x62, 2, 0, 0x10, 0x21])).toString()).toBe('ababababab!')
    const long = [0xf0, 5, ...Array.from({ length: 20 }, () => 0x78)]
    expect(unpackLz4(framed(long)).toString()).toBe('x'.repeat(20))
  })

  test('offsets outside the data are refused', () => {
    expect(() => unpackLz4(framed([0x14, 0x61, 9, 0]))).toThrow(/points outside/)
    expect(() => unpackLz4(framed([0x14, 0x61, 0, 0]))).toThrow(/points outside/)
    expect(() => unpackLz4(framed([0xf0, 255, 255, 1]))).toThrow(/too long/)
    expect(() => unpackLz4(Buffer.from('no kernel at all'))).toThrow(/wrong magic/)
  })
})

test('an initramfs has the kernel’s format and no timestamps', () => {
  const entries = [
    { path: '/dev', kind: 'dir' },
    { path: '/init', kind: 'file', mode: 0o500, bytes: Buffer.from('agent') },
  ] as const
  const bytes = cpioOf(entries)
  expect(bytes.equals(cpioOf(entries))).toBe(true)
  const text = bytes.toString('latin1')
  expect(text.slice(0, 6)).toBe('070701')
  expect(text).toContain('init\0')
  expect(text).toContain('TRAILER!!!')
  expect(bytes.length % 512).toBe(0)
})

test('the probe is a guest that QEMU starts by its ELF note', () => {
  const guest = probeGuest()
  expect(guest.readUInt32BE(0)).toBe(0x7f454c46)
  expect(guest.includes('Xen\0')).toBe(true)
})
