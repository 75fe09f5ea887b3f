import type { GuestImage } from '../image/image.ts'

/**
 * The API calls and arguments for Firecracker and its jailer. Pure.
 * PLATFORM: never run on a real host. The calls are tested against a strict fake of the API, and nothing more is claimed;
 * `qemu` is the driver that runs.
 */

/** One request to Firecracker's socket. */
export type FirecrackerCall = {
  readonly method: 'PUT' | 'PATCH'
  readonly path: string
  readonly body: Readonly<Record<string, unknown>>
}

/** The settings of one machine. */
export type FirecrackerMachine = {
  readonly id: string
  readonly image: GuestImage
  readonly disk: string
  readonly memoryMb: number
}

/** File names inside the jail; the jailer's directory has one hard link for each. */
const INSIDE = {
  kernel: 'vmlinux',
  initrd: 'initrd',
  root: 'root.img',
  disk: 'disk.img',
  vsock: 'agent.sock',
}
const SNAPSHOT = { state: 'state', memory: 'memory' }
/** Any number above the reserved ones: each machine has its own socket. */
const GUEST_CID = 3
const BOOT_ARGUMENTS = 'reboot=k panic=-1 quiet loglevel=0 random.trust_cpu=on 8250.nr_uarts=0'

const put = (path: string, body: FirecrackerCall['body']): FirecrackerCall => ({ method: 'PUT', path, body })

/** Boots a machine. SECURITY: no network interface and no metadata service. */
export const bootCalls = ({ memoryMb }: FirecrackerMachine): readonly FirecrackerCall[] => [
  put('/machine-config', { vcpu_count: 1, mem_size_mib: memoryMb, smt: false }),
  put('/boot-source', {
    kernel_image_path: INSIDE.kernel,
    initrd_path: INSIDE.initrd,
    boot_args: BOOT_ARGUMENTS,
  }),
  put('/drives/root', drive('root', INSIDE.root, true)),
  put('/drives/disk', drive('disk', INSIDE.disk, false)),
  put('/vsock', { guest_cid: GUEST_CID, uds_path: INSIDE.vsock }),
  put('/actions', { action_type: 'InstanceStart' }),
]

const drive = (id: string, path: string, readOnly: boolean): Record<string, unknown> => ({
  drive_id: id,
  path_on_host: path,
  is_root_device: false,
  is_read_only: readOnly,
  cache_type: 'Unsafe',
})

/** Pauses a machine and saves it. */
export const saveCalls = (): readonly FirecrackerCall[] => [
  { method: 'PATCH', path: '/vm', body: { state: 'Paused' } },
  put('/snapshot/create', {
    snapshot_type: 'Full',
    snapshot_path: SNAPSHOT.state,
    mem_file_path: SNAPSHOT.memory,
  }),
]

/**
 * Clones a machine: its memory is a private mapping of the template's file. File names in the snapshot are relative, so
 * each clone finds its own disk and its own socket in its own jail.
 */
export const cloneCalls = (): readonly FirecrackerCall[] => [
  put('/snapshot/load', {
    snapshot_path: SNAPSHOT.state,
    mem_backend: { backend_type: 'File', backend_path: SNAPSHOT.memory },
    resume_vm: false,
  }),
]

/** The call that pauses a machine. */
export const pauseCall = (): FirecrackerCall => ({ method: 'PATCH', path: '/vm', body: { state: 'Paused' } })
/** The call that resumes a machine. */
export const resumeCall = (): FirecrackerCall => ({
  method: 'PATCH',
  path: '/vm',
  body: { state: 'Resumed' },
})

/** The settings of the jailer. */
export type FirecrackerJail = {
  readonly firecracker: string
  readonly base: string
  readonly uid: number
  readonly gid: number
  /** The host's CPU limit for the machine, and the memory beside the guest's. */
  readonly cpus: number
}

const OVERHEAD_MB = 128

/** The jailer creates the directory, the namespaces and the cgroups, and switches to the user. */
export const jailerArguments = (
  { id, memoryMb }: FirecrackerMachine,
  { firecracker, base, uid, gid, cpus }: FirecrackerJail,
): readonly string[] => [
  ...['--id', id, '--exec-file', firecracker, '--uid', String(uid), '--gid', String(gid)],
  ...['--chroot-base-dir', base, '--cgroup-version', '2', '--new-pid-ns'],
  ...['--cgroup', `memory.max=${(memoryMb + OVERHEAD_MB) * 1024 * 1024}`],
  ...['--cgroup', `cpu.max=${Math.round(cpus * 100_000)} 100000`, '--cgroup', 'pids.max=64'],
  ...['--', '--api-sock', 'api.sock'],
]

/** Which host file is linked into the jail under which name. */
export const jailedFiles = ({ image, disk }: FirecrackerMachine): ReadonlyMap<string, string> =>
  new Map([
    [INSIDE.kernel, image.vmlinux],
    [INSIDE.initrd, image.initrd],
    [INSIDE.root, image.root],
    [INSIDE.disk, disk],
  ])
