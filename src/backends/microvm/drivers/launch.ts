/** What QEMU and the jail around it are started with. Pure. */

/** How the guest's instructions run: by the processor, or by a program that reads them. */
export type Accelerator = 'kvm' | 'tcg'

/** QEMU gets every file as an open descriptor, so that none has to be in its reach by name. */
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

export type MachineLaunch = {
  readonly accelerator: Accelerator
  readonly memoryMb: number
  /** The host's own clock rate: under emulation a guest cannot measure one reliably. */
  readonly tscKhz: number
  /**
   * Where the guest's memory lies: nowhere, in a file that it writes to (a template in the making), or in a file that it
   * reads and changes for itself alone (a clone).
   */
  readonly memory: 'own' | 'written' | 'shared-template'
  /** From this version on QEMU can open a template without the right to write to it. */
  readonly opensReadOnly: boolean
  /** Starts from the state on the last descriptor. */
  readonly incoming: boolean
}

/** Strings that are moved byte by byte cost a processor nothing and an emulator eight times as much. */
const EMULATED_CPU = 'max,erms=off,fsrm=off'

/** Everything that slows the boot and that no sandbox uses is off; speculation's fixes matter only on a processor. */
const EMULATED = ['mitigations=off', 'cryptomgr.notests', 'tsc=reliable', 'no_timer_check']
const BLACKLIST = 'initcall_blacklist=init_kprobe_trace,trace_eval_init,slab_sysfs_init'

function kernelCommandLine({ accelerator, tscKhz }: MachineLaunch): string {
  // Landlock is used; the other guards of the kernel's have no rules here and are only asked.
  const guards = 'lsm=landlock,yama'
  const quiet = ['reboot=t', 'panic=-1', 'quiet', 'loglevel=0']
  const always = [...quiet, 'random.trust_cpu=on', '8250.nr_uarts=0', guards]
  if (accelerator === 'kvm') return always.join(' ')
  const clock = [`tsc_early_khz=${tscKhz}`, `lpj=${tscKhz * 2}`]
  return [...always, ...EMULATED, ...clock, BLACKLIST].join(' ')
}

/**
 * INVARIANT: a template and its clones differ in `memory` and `incoming` alone; anything else and the state does not fit.
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

/** What a clone writes to its disk is its own and gone with it, so nothing is ever forced onto the host's. */
const drive = (name: string, descriptor: number, readOnly: boolean): readonly string[] => [
  '-blockdev',
  `driver=file,node-name=${name},filename=${byDescriptor(descriptor)},locking=off,read-only=${readOnly ? 'on' : 'off'},cache.no-flush=on`,
  '-device',
  // Where the host's disk is full the guest hears of it, instead of standing still for ever.
  `virtio-blk-device,drive=${name},serial=${name},werror=report,rerror=report`,
]

export type Jail = {
  readonly agent: string
  readonly bwrap: string
  readonly qemu: string
  /** Programs, libraries and firmware, shown read-only where they are. */
  readonly shown: readonly string[]
  readonly links: readonly { readonly path: string; readonly target: string }[]
  /** Whom QEMU runs as; absent where we are nobody special ourselves. */
  readonly user: { readonly uid: number; readonly gid: number } | undefined
  readonly cgroups: readonly string[]
  /** A directory for the socket that a snapshot leaves by. */
  readonly exit: string | undefined
  /** Whether the last descriptor holds what makes an old QEMU open the template for reading alone. */
  readonly preload: boolean
  readonly accelerator: Accelerator
}

const NAMESPACES = ['user', 'pid', 'ipc', 'uts', 'net'].map((name) => `--unshare-${name}`)

/** Where a snapshot's socket is in the jail. */
export const EXIT = '/run/exit'

/**
 * The jail: control groups and a user first, then namespaces with nothing in them but the program itself.
 * SECURITY: the emulator is a large program that reads what a guest writes; when it falls, this is what is left.
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
    ...(exit === undefined ? [] : ['--bind', exit, EXIT]),
    ...(preload ? ['--setenv', 'LD_PRELOAD', byDescriptor(DESCRIPTORS.preload)] : []),
    ...(preload ? ['--setenv', 'RINGFENCE_TEMPLATE', byDescriptor(DESCRIPTORS.memory)] : []),
    ...['--remount-ro', '/', '--chdir', '/', '--', jail.qemu],
    ...qemu,
  ]
}
