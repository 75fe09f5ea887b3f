import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { type MicrovmParts, microvm } from '../../src/backends/microvm/backend.ts'
import { Qemu } from '../../src/backends/microvm/drivers/qemu.ts'
import { GuestImages } from '../../src/backends/microvm/image/image.ts'
import { childrenOf } from '../../src/host/system.ts'
import { refusedBy } from '../../src/policy/paths/protect.ts'
import { testImages, testState } from '../conformance/engines.ts'
import { packageRoot, planOf } from '../conformance/world.ts'

export const agent = join(packageRoot(), 'dist', 'guest', 'ringfence-agent')
const preload = join(packageRoot(), 'dist', 'guest', 'ringfence-readonly.so')

/** Why no virtual machine can be started on this host; in CI that is a failure. */
export function whyNoMachine(): string | undefined {
  if (process.arch !== 'x64' || process.platform !== 'linux') return 'needs Linux on x64'
  const missing = ['/usr/bin/qemu-system-x86_64', '/usr/bin/mkfs.erofs'].find((file) => !existsSync(file))
  return missing && `${missing} is not installed`
}

/** Kernel and root image, made once for all tests of a working copy. */
export async function machineImages(): Promise<void> {
  const images = testImages()
  const guests = new GuestImages({ stateDir: testState(), agent, images })
  await guests.get(await images.default())
}

export const emulator = (): Qemu => new Qemu({ agent, preload, accelerator: 'tcg' })

/** The backend with an emulated processor, which works on every host. */
export const machines = (more: Partial<MicrovmParts> = {}) =>
  microvm({
    agent,
    probePlan: (isolation) => planOf({ limits: { wallMs: 10_000 }, ...(isolation ? { isolation } : {}) }),
    images: testImages(),
    stateDir: testState(),
    driver: emulator(),
    emulated: () => true,
    refuses: refusedBy,
    ...more,
  })

/** Every QEMU process that this process started, also inside its jail. */
export function emulators(): readonly number[] {
  const below = (pid: number): number[] => [pid, ...childrenOf(pid).flatMap(below)]
  return below(process.pid).filter((pid) => {
    try {
      const words = readFileSync(`/proc/${pid}/cmdline`, 'latin1').split('\0')
      return words[0]?.endsWith('qemu-system-x86_64')
    } catch {
      return false
    }
  })
}
