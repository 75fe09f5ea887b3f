import { VSOCK_PORT } from '../../../host/guest/protocol.ts'
import type { GuestImage } from '../image/image.ts'

/**
 * The arguments of `vfkit`, which starts machines with Apple's Virtualization framework. Pure.
 * PLATFORM: it runs only on macOS, so these arguments are tested against a strict fake of its command line, and nothing
 * more is claimed. There are no clones: only Apple's own programs can save and load machines with the framework.
 */

export type VzMachine = {
  readonly image: GuestImage
  readonly disk: string
  readonly memoryMb: number
  /** The host socket that is connected to the agent's port. */
  readonly channel: string
  /** The path of the unix socket of vfkit's control API: pause, resume, stop. */
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

/** A request to the control API, as path and body. */
export const vfkitOrder = (
  what: 'Pause' | 'Resume' | 'HardStop',
): { readonly path: string; readonly body: { readonly state: string } } => ({
  path: '/vm/state',
  body: { state: what },
})

/** The only files that vfkit may open. */
export const vzFiles = ({ image, disk }: VzMachine): readonly string[] => [
  image.vmlinux,
  image.initrd,
  image.root,
  disk,
]
