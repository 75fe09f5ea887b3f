/** The arguments of QEMU and of its jail. Pure. */

/** How guest instructions are executed: by the CPU, or emulated. */
export type Accelerator = 'kvm' | 'tcg'

/** QEMU gets every file as an open descriptor, so that it needs no access to files by name. */
export const DESCRIPTORS = {
  channel: 3,
  monitor: 4,
  kernel: 5,
  initrd: 6,
  root: 7,
  disk: 8,
  inputs: 9,
  memory: 10,
  state: 11,
  preload: 12,
}

const byDescriptor = (number: number): string => `/proc/self/fd/${number}`

/** What QEMU is started with. */
export type MachineLaunch = {
  readonly accelerator: Accelerator
  readonly memoryMb: number
  /** The host's TSC frequency: an emulated guest cannot measure one reliably. */
  readonly tscKhz: number
  /**
   * The guest's memory: anonymous, a file that it writes to (while a template is created), or a private mapping of a
   * template's file (a clone).
   */
  readonly memory: 'own' | 'written' | 'shared-template'
  /** Whether this QEMU version can open a template without write permission. */
  readonly opensReadOnly: boolean
  /** Whether this QEMU version uses translated code again when the guest maps the same file at another address. */
  readonly relocatesCode: boolean
  /** Whether to load the state from the last descriptor. */
  readonly incoming: boolean
}

/** Fast string instructions cost a CPU nothing, but an emulator eight times as much. */
const EMULATED_CPU = 'max,erms=off,fsrm=off'

/** Disables what slows the boot and no sandbox uses; speculation mitigations matter only on a real CPU. */
const EMULATED = ['mitigations=off', 'cryptomgr.notests', 'tsc=reliable', 'no_timer_check']
const BLACKLIST = 'initcall_blacklist=init_kprobe_trace,trace_eval_init,slab_sysfs_init'

/**
 * Programs of the guest start at fixed addresses. An old emulator translates the libraries of every program again wherever
 * they are loaded, which takes three quarters of the time of a command. On a CPU and with a newer QEMU addresses stay random.
 */
const FIXED_ADDRESSES = 'norandmaps'

function kernelCommandLine({ accelerator, tscKhz, relocatesCode }: MachineLaunch): string {
  // Landlock is used; the other security modules of the kernel have no rules here and would only cost time.
  const guards = 'lsm=landlock,yama'
  const quiet = ['reboot=t', 'panic=-1', 'quiet', 'loglevel=0']
  const always = [...quiet, 'random.trust_cpu=on', '8250.nr_uarts=0', guards]
  if (accelerator === 'kvm') return always.join(' ')
  const clock = [`tsc_early_khz=${tscKhz}`, `lpj=${tscKhz * 2}`]
  const addresses = relocatesCode ? [] : [FIXED_ADDRESSES]
  return [...always, ...EMULATED, ...addresses, ...clock, BLACKLIST].join(' ')
}

/**
 * INVARIANT: a template and its clones differ only in `memory` and `incoming`; otherwise the state does not fit.
 * SECURITY: no network device, no shared file system, no default device; QEMU may start no process and change no user.
 */
export function qemuArguments(launch: MachineLaunch): readonly string[] {
  const { accelerator, incoming } = launch
  return [
    ...['-M', `${machine(accelerator)},memory-backend=ram`],
    ...['-accel', accelerator === 'kvm' ? 'kvm' : 'tcg,tb-size=64'],
    ...['-cpu', accelerator === 'kvm' ? 'host' : EMULATED_CPU, '-smp', '1', '-m', String(launch.memoryMb)],
    ...['-object', memoryObject(launch)],
    ...['-nodefaults', '-no-user-config', '-display', 'none', '-no-reboot', '-bios', 'qboot.rom'],
    ...['-global', 'virtio-mmio.force-legacy=false'],
    ...['-sandbox', 'on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny'],
    ...['-kernel', byDescriptor(DESCRIPTORS.kernel), '-initrd', byDescriptor(DESCRIPTORS.initrd)],
    ...['-append', kernelCommandLine(launch)],
    ...['-chardev', `socket,id=monitor,fd=${DESCRIPTORS.monitor}`, '-mon', 'chardev=monitor,mode=control'],
    ...['-chardev', `socket,id=agent,fd=${DESCRIPTORS.channel}`],
    ...['-device', 'virtio-serial-device,max_ports=2', '-device', 'virtserialport,chardev=agent,name=agent'],
    ...drive('root', DESCRIPTORS.root, true),
    ...drive('disk', DESCRIPTORS.disk, false),
    ...drive('inputs', DESCRIPTORS.inputs, true),
    ...(incoming ? ['-incoming', 'defer'] : []),
  ]
}

const machine = (accelerator: Accelerator): string =>
  accelerator === 'kvm'
    ? 'microvm,acpi=on,rtc=on,isa-serial=off,auto-kernel-cmdline=off'
    : 'microvm,acpi=on,pit=off,pic=off,rtc=on,isa-serial=off,auto-kernel-cmdline=off'

function memoryObject({ memory, memoryMb, opensReadOnly }: MachineLaunch): string {
  const size = `id=ram,size=${memoryMb}M`
  if (memory === 'own') return `memory-backend-ram,${size}`
  const file = `memory-backend-file,${size},mem-path=${byDescriptor(DESCRIPTORS.memory)}`
  if (memory === 'written') return `${file},share=on`
  return `${file},share=off${opensReadOnly ? ',readonly=on,rom=off' : ''}`
}

/** A clone's disk is private and temporary, so its writes are never flushed to the host's disk. */
const drive = (name: string, descriptor: number, readOnly: boolean): readonly string[] => [
  '-blockdev',
  `driver=file,node-name=${name},filename=${byDescriptor(descriptor)},locking=off,read-only=${readOnly ? 'on' : 'off'},cache.no-flush=on`,
  '-device',
  // If the host's disk is full, the guest gets an error instead of hanging forever.
  `virtio-blk-device,drive=${name},serial=${name},werror=report,rerror=report`,
]

/** The sandbox around QEMU itself. */
export type Jail = {
  readonly agent: string
  readonly bwrap: string
  readonly qemu: string
  /** Programs, libraries and firmware, mounted read-only at their paths. */
  readonly shown: readonly string[]
  readonly links: readonly { readonly path: string; readonly target: string }[]
  /** The user that QEMU runs as; absent if we are unprivileged ourselves. */
  readonly user: { readonly uid: number; readonly gid: number } | undefined
  readonly cgroups: readonly string[]
  /** The directory of the socket through which a snapshot is saved. */
  readonly exit: string | undefined
  /** Whether the last descriptor is the preload library that makes an old QEMU open the template read-only. */
  readonly preload: boolean
  readonly accelerator: Accelerator
}

const NAMESPACES = ['user', 'pid', 'ipc', 'uts', 'net'].map((name) => `--unshare-${name}`)

/** The path of the snapshot socket in the jail. */
export const EXIT = '/run/exit'

/**
 * The jail: cgroups and a user first, then namespaces that contain only the program itself.
 * SECURITY: the emulator is a large program that processes guest data; if it is compromised, the jail still holds.
 */
export function jailArguments(jail: Jail, qemu: readonly string[]): readonly string[] {
  const { user, cgroups, bwrap, shown, links, exit, preload, accelerator } = jail
  const bind = (path: string): readonly string[] => ['--ro-bind', path, path]
  return [
    ...['run-as', user ? String(user.uid) : '', user ? String(user.gid) : '', ...cgroups, '--'],
    ...[bwrap, ...NAMESPACES, '--unshare-cgroup-try', '--die-with-parent', '--new-session'],
    ...['--cap-drop', 'ALL', '--hostname', 'machine', '--clearenv'],
    ...shown.flatMap(bind),
    ...links.flatMap(({ path, target }) => ['--symlink', target, path]),
    ...['--proc', '/proc', '--dev', '/dev'],
    ...(accelerator === 'kvm' ? ['--dev-bind', '/dev/kvm', '/dev/kvm'] : []),
    ...(exit === undefined ? [] : ['--ro-bind', exit, EXIT]),
    ...(preload ? ['--setenv', 'LD_PRELOAD', byDescriptor(DESCRIPTORS.preload)] : []),
    ...(preload ? ['--setenv', 'RINGFENCE_TEMPLATE', byDescriptor(DESCRIPTORS.memory)] : []),
    ...['--remount-ro', '/', '--chdir', '/', '--', jail.qemu],
    ...qemu,
  ]
}
