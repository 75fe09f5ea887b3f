import { accessSync, constants, existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { run } from '../../../host/process/run.ts'

/** QEMU's exit code for the guest's success: QEMU doubles the written value and adds one. */
const DONE = 33
const WITHIN_MS = 1000
const LOOPS = 20_000_000

/**
 * Whether KVM really runs guests on the CPU. A device node proves nothing: on some hosts `/dev/kvm` opens and then
 * emulates every instruction in software, a thousand times too slow.
 */
export async function probeKvm(qemu: string): Promise<boolean> {
  if (!looksPossible()) return false
  const dir = mkdtempSync(join(tmpdir(), 'rf-kvm-'))
  try {
    const kernel = join(dir, 'probe')
    writeFileSync(kernel, probeGuest())
    const args = [
      ...['-M', 'microvm,acpi=off', '-accel', 'kvm', '-cpu', 'host', '-m', '16', '-nodefaults'],
      ...['-no-user-config', '-display', 'none', '-no-reboot', '-bios', 'qboot.rom', '-kernel', kernel],
      ...['-device', 'isa-debug-exit,iobase=0xf4,iosize=0x04'],
    ]
    const launch = { file: qemu, args, env: { PATH: '/usr/bin:/bin' }, cwd: '/', control: false }
    const { exit } = await run(launch, { wallMs: WITHIN_MS })
    return exit.code === DONE
  } catch {
    return false
  } finally {
    rmSync(dir, { recursive: true, force: true })
  }
}

/** Quick checks that rule KVM out; otherwise the test guest decides. */
function looksPossible(): boolean {
  if (existsSync('/sys/module/kvm_pvm')) return false
  if (!/^flags\s*:.*\b(vmx|svm)\b/m.test(readFileSync('/proc/cpuinfo', 'utf8'))) return false
  try {
    accessSync('/dev/kvm', constants.R_OK | constants.W_OK)
    return true
  } catch {
    return false
  }
}

const CODE_AT = 0x100000
const NOTE_AT = 0x1000
const CODE_OFFSET = 0x1020

/**
 * The smallest guest: an ELF file with a note that names the 32-bit entry point. It counts down and then writes to the port
 * that ends QEMU.
 */
export function probeGuest(): Buffer {
  const code = Buffer.from([
    ...[0xb9, 0, 0, 0, 0], // mov ecx, LOOPS
    ...[0x49, 0x75, 0xfd], // dec ecx; jnz back
    ...[0xb0, 0x10, 0xe6, 0xf4, 0xf4], // mov al, 16; out 0xf4, al; hlt
  ])
  code.writeUInt32LE(LOOPS, 1)
  const file = Buffer.alloc(CODE_OFFSET + code.length)
  file.set([0x7f, 0x45, 0x4c, 0x46, 2, 1, 1], 0)
  file.writeUInt16LE(2, 16)
  file.writeUInt16LE(62, 18)
  file.writeUInt32LE(1, 20)
  file.writeBigUInt64LE(BigInt(CODE_AT), 24)
  file.writeBigUInt64LE(64n, 32)
  file.writeUInt16LE(64, 52)
  file.writeUInt16LE(56, 54)
  file.writeUInt16LE(2, 56)
  segment(file, 64, { type: 1, offset: CODE_OFFSET, address: CODE_AT, size: code.length })
  segment(file, 120, { type: 4, offset: NOTE_AT, address: 0, size: 20 })
  // XEN_ELFNOTE_PHYS32_ENTRY
  file.writeUInt32LE(4, NOTE_AT)
  file.writeUInt32LE(4, NOTE_AT + 4)
  file.writeUInt32LE(18, NOTE_AT + 8)
  file.write('Xen\0', NOTE_AT + 12, 'latin1')
  file.writeUInt32LE(CODE_AT, NOTE_AT + 16)
  file.set(code, CODE_OFFSET)
  return file
}

type Segment = {
  readonly type: number
  readonly offset: number
  readonly address: number
  readonly size: number
}

function segment(file: Buffer, at: number, { type, offset, address, size }: Segment): void {
  file.writeUInt32LE(type, at)
  file.writeUInt32LE(5, at + 4)
  file.writeBigUInt64LE(BigInt(offset), at + 8)
  for (const field of [16, 24]) file.writeBigUInt64LE(BigInt(address), at + field)
  for (const field of [32, 40]) file.writeBigUInt64LE(BigInt(size), at + field)
  file.writeBigUInt64LE(4n, at + 48)
}
