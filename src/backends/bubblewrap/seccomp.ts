/**
 * The seccomp filter, assembled here and passed by descriptor. It rejects system calls that sandboxed programs do not need
 * and that exploits commonly use; everything else is allowed.
 *
 * SECURITY: system call numbers depend on the architecture, so the filter checks it first; a program that switches to
 * another one (int 0x80, x32) must not reach other calls with the same numbers.
 */

export type Arch = 'x64' | 'arm64'

type Numbers = Readonly<Record<Arch, number | undefined>>

const both = (x64: number, arm64: number): Numbers => ({ x64, arm64 })
const newer = (number: number): Numbers => ({ x64: number, arm64: number })
const onlyX64 = (x64: number): Numbers => ({ x64, arm64: undefined })

/** Rejected with EPERM regardless of the arguments. */
const REFUSED: Readonly<Record<string, Numbers>> = {
  // mounts and roots
  mount: both(165, 40),
  umount2: both(166, 39),
  pivot_root: both(155, 41),
  chroot: both(161, 51),
  open_tree: newer(428),
  move_mount: newer(429),
  fsopen: newer(430),
  fsconfig: newer(431),
  fsmount: newer(432),
  fspick: newer(433),
  mount_setattr: newer(442),
  open_tree_attr: newer(467),
  setns: both(308, 268),
  // kernel code and kernel memory
  init_module: both(175, 105),
  finit_module: both(313, 273),
  delete_module: both(176, 106),
  create_module: onlyX64(174),
  get_kernel_syms: onlyX64(177),
  query_module: onlyX64(178),
  kexec_load: both(246, 104),
  kexec_file_load: both(320, 294),
  bpf: both(321, 280),
  perf_event_open: both(298, 241),
  userfaultfd: both(323, 282),
  io_uring_setup: newer(425),
  io_uring_enter: newer(426),
  io_uring_register: newer(427),
  lookup_dcookie: both(212, 18),
  // key rings are not namespaced
  keyctl: both(250, 219),
  add_key: both(248, 217),
  request_key: both(249, 218),
  // the machine: clock, power, swap, accounting, names, ports
  reboot: both(169, 142),
  swapon: both(167, 224),
  swapoff: both(168, 225),
  settimeofday: both(164, 170),
  clock_settime: both(227, 112),
  clock_adjtime: both(305, 266),
  adjtimex: both(159, 171),
  sethostname: both(170, 161),
  setdomainname: both(171, 162),
  syslog: both(103, 116),
  acct: both(163, 89),
  quotactl: both(179, 60),
  quotactl_fd: newer(443),
  iopl: onlyX64(172),
  ioperm: onlyX64(173),
  vhangup: both(153, 58),
  // files by handle, whole-filesystem watches
  open_by_handle_at: both(304, 265),
  fanotify_init: both(300, 262),
  // old and unused
  nfsservctl: both(180, 42),
  modify_ldt: onlyX64(154),
  uselib: onlyX64(134),
  ustat: onlyX64(136),
  sysfs: onlyX64(139),
  _sysctl: onlyX64(156),
}

/** CLONE_NEWCGROUP | NEWUTS | NEWIPC | NEWUSER | NEWPID | NEWNET | NEWNS | NEWTIME. */
export const NEW_NAMESPACES =
  (0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000 | 0x00020000 | 0x80) >>> 0
/** clone has the exit signal where unshare has NEWTIME, and cannot create time namespaces. */
export const CLONE_NAMESPACES = (NEW_NAMESPACES & ~0x80) >>> 0

const AF_UNIX = 1
const AF_INET = 2
const AF_INET6 = 10
const AF_NETLINK = 16
const NETLINK_ROUTE = 0
/** The default of the type, TCP, UDP. */
const INTERNET_PROTOCOLS = [0, 6, 17]
const TIOCSTI = 0x5412
const TIOCLINUX = 0x541c

const EPERM = 1
const ENOSYS = 38
const EPROTONOSUPPORT = 93
const EAFNOSUPPORT = 97

const AUDIT_ARCH: Readonly<Record<Arch, number>> = { x64: 0xc000003e, arm64: 0xc00000b7 }
const CLONE = both(56, 220)
const CLONE3 = newer(435)
const UNSHARE = both(272, 97)
const SOCKET = both(41, 198)
const IOCTL = both(16, 29)
const X32_BIT = 0x40000000

// One instruction of classic BPF: code, jump if true, jump if false, constant.
type Instruction = readonly [code: number, jt: number, jf: number, k: number]

const LOAD = 0x20
const JUMP_EQUAL = 0x15
const JUMP_AT_LEAST = 0x35
const JUMP_ANY_BIT = 0x45
const RETURN = 0x06

const ALLOW = 0x7fff0000
const KILL_PROCESS = 0x80000000
const fail = (errno: number): number => 0x00050000 | errno

const NUMBER_OFFSET = 0
const ARCH_OFFSET = 4
const argument = (index: number): number => 16 + 8 * index

const load = (offset: number): Instruction => [LOAD, 0, 0, offset]
const answer = (action: number): Instruction => [RETURN, 0, 0, action]

/** Runs `body` if the loaded value equals `value`. Every body ends in a return. */
const when = (value: number, body: readonly Instruction[]): readonly Instruction[] => [
  [JUMP_EQUAL, 0, body.length, value],
  ...body,
]

const whenBits = (mask: number, action: number): readonly Instruction[] => [
  [JUMP_ANY_BIT, 0, 1, mask],
  answer(action),
  answer(ALLOW),
]

function socketRules(): readonly Instruction[] {
  return [
    load(argument(0)),
    ...when(AF_UNIX, [answer(ALLOW)]),
    // Few programs use other protocols (MPTCP, SCTP, UDP-Lite, ICMP) or miss them; their buffers are in no table that the agent could count.
    // Sockets of ICMP are in one, but leave it with their buffers when they are disconnected.
    ...[AF_INET, AF_INET6].flatMap((family) =>
      when(family, [
        load(argument(2)),
        ...INTERNET_PROTOCOLS.flatMap((protocol) => when(protocol, [answer(ALLOW)])),
        answer(fail(EPROTONOSUPPORT)),
      ]),
    ),
    // Programs list their network interfaces with it; the other protocols expose much more of the kernel.
    ...when(AF_NETLINK, [
      load(argument(2)),
      ...when(NETLINK_ROUTE, [answer(ALLOW)]),
      answer(fail(EAFNOSUPPORT)),
    ]),
    answer(fail(EAFNOSUPPORT)),
  ]
}

/** The terminal ioctls that inject characters into another process's input. */
const ioctlRules = (): readonly Instruction[] => [
  load(argument(1)),
  ...[TIOCSTI, TIOCLINUX].flatMap((request) => when(request, [answer(fail(EPERM))])),
  answer(ALLOW),
]

/** The filter's instructions for one architecture. */
export function assemble(arch: Arch): readonly Instruction[] {
  const number = (numbers: Numbers): number => numbers[arch] ?? -1
  return [
    load(ARCH_OFFSET),
    [JUMP_EQUAL, 1, 0, AUDIT_ARCH[arch]],
    answer(KILL_PROCESS),
    load(NUMBER_OFFSET),
    ...(arch === 'x64' ? ([[JUMP_AT_LEAST, 0, 1, X32_BIT], answer(fail(ENOSYS))] as const) : []),
    ...Object.values(REFUSED)
      .map(number)
      .filter((value) => value >= 0)
      .flatMap((value) => when(value, [answer(fail(EPERM))])),
    ...when(number(CLONE), [load(argument(0)), ...whenBits(CLONE_NAMESPACES, fail(EPERM))]),
    ...when(number(UNSHARE), [load(argument(0)), ...whenBits(NEW_NAMESPACES, fail(EPERM))]),
    // Its flags are in memory, which a filter cannot read; every C library falls back to clone.
    ...when(number(CLONE3), [answer(fail(ENOSYS))]),
    ...when(number(SOCKET), socketRules()),
    ...when(number(IOCTL), ioctlRules()),
    answer(ALLOW),
  ]
}

/** The filter in the kernel's format: 8 bytes per instruction, little endian. */
export function encode(instructions: readonly Instruction[]): Uint8Array {
  const bytes = new DataView(new ArrayBuffer(instructions.length * 8))
  for (const [index, [code, jt, jf, k]] of instructions.entries()) {
    bytes.setUint16(index * 8, code, true)
    bytes.setUint8(index * 8 + 2, jt)
    bytes.setUint8(index * 8 + 3, jf)
    bytes.setUint32(index * 8 + 4, k >>> 0, true)
  }
  return new Uint8Array(bytes.buffer)
}

/** The system calls that the filter refuses. */
export const REFUSED_CALLS: readonly string[] = Object.keys(REFUSED)
