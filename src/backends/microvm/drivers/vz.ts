import { VSOCK_PORT } from '../../../host/guest/protocol.ts'
import type { GuestImage } from '../image/image.ts'

/**
 * What `vfkit`, which starts machines by Apple's Virtualization framework, is told. Pure.
 * PLATFORM: it runs on macOS alone, so these arguments are held against a strict fake of its command line, and nothing more
 * is claimed. There are no clones: the framework saves and loads machines only through programs of Apple's.
 */

export type VzMachine = {
  readonly image: GuestImage
  readonly disk: string
  readonly memoryMb: number
  /** A socket of the host by which the agent's port is reached. */
  readonly channel: string
  /** Where vfkit takes orders: pause, resume, stop. */
  readonly control: string
}

const KERNEL_ARGUMENTS = 'quiet loglevel=0 panic=-1 random.trust_cpu=on'

/** SECURITY: no network device, no shared directory, no console; `vfkit` itself runs behind a Seatbelt profile. */
export const vfkitArguments = (machine: VzMachine): readonly string[] => [
  ...['--cpus', '1', '--memory', String(machine.memoryMb)],
  ...[
    '--bootloader',
    `linux,kernel=${machine.image.vmlinux},initrd=${machine.image.initrd},cmdline="${KERNEL_ARGUMENTS}"`,
  ],
  ...['--device', `virtio-blk,path=${machine.image.root},deviceId=root,readonly`],
  ...['--device', `virtio-blk,path=${machine.disk},deviceId=disk`],
  ...['--device', `virtio-vsock,port=${VSOCK_PORT},socketURL=${machine.channel},connect`],
  ...['--device', 'virtio-rng'],
  ...['--restful-uri', `unix://${machine.control}`],
]

/** Orders on the control socket, as path and body. */
export const vfkitOrder = (
  what: 'Pause' | 'Resume' | 'HardStop',
): { readonly path: string; readonly body: { readonly state: string } } => ({
  path: '/vm/state',
  body: { state: what },
})

/** The only files that it may open. */
export const vzFiles = ({ image, disk }: VzMachine): readonly string[] => [
  image.vmlinux,
  image.initrd,
  image.root,
  disk,
]
