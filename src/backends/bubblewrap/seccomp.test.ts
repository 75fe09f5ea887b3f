import { describe, expect, test } from 'vitest'
import { type Arch, assemble, encode, REFUSED_CALLS } from './seccomp.ts'

/** The data that the kernel passes to a filter. */
type Call = { readonly nr: number; readonly arch: number; readonly args?: readonly (number | bigint)[] }

const AUDIT_ARCH = { x64: 0xc000003e, arm64: 0xc00000b7, i386: 0x40000003, arm: 0x40000028 } as const

/** `struct seccomp_data`: number, architecture, instruction pointer, six arguments of 64 bits. */
function dataOf({ nr, arch, args = [] }: Call): DataView {
  const data = new DataView(new ArrayBuffer(64))
  data.setUint32(0, nr, true)
  data.setUint32(4, arch, true)
  for (const [index, value] of args.entries())
    data.setBigUint64(16 + 8 * index, BigInt.asUintN(64, BigInt(value)), true)
  return data
}

/** A classic BPF machine, as small as the kernel's rules for seccomp filters allow; anything else is an error. */
function evaluate(program: Uint8Array, call: Call): number {
  const code = new DataView(program.buffer, program.byteOffset, program.byteLength)
  const data = dataOf(call)
  let accumulator = 0
  for (let pc = 0; pc * 8 < program.length; pc++) {
    const at = pc * 8
    const k = code.getUint32(at + 4, true)
    const jump = (taken: boolean): number => code.getUint8(at + (taken ? 2 : 3))
    switch (code.getUint16(at, true)) {
      case 0x20: // BPF_LD | BPF_W | BPF_ABS
        if (k % 4 !== 0 || k > 60) throw new Error(`load at ${k}`)
        accumulator = data.getUint32(k, true)
        break
      case 0x15: // BPF_JMP | BPF_JEQ | BPF_K
        pc += jump(accumulator === k)
        break
      case 0x35: // BPF_JMP | BPF_JGE | BPF_K
        pc += jump(accumulator >= k)
        break
      case 0x45: // BPF_JMP | BPF_JSET | BPF_K
        pc += jump((accumulator & k) !== 0)
        break
      case 0x06: // BPF_RET | BPF_K
        return k
      default:
        throw new Error(`instruction ${pc} is none that a seccomp filter may have`)
    }
  }
  throw new Error('ran past the end')
}

const ACTIONS: Readonly<Record<number, string>> = {
  2147418112: 'allow',
  2147483648: 'kill',
  [0x00050000 | 1]: 'EPERM',
  [0x00050000 | 38]: 'ENOSYS',
  [0x00050000 | 93]: 'EPROTONOSUPPORT',
  [0x00050000 | 97]: 'EAFNOSUPPORT',
}

const PROGRAMS = { x64: encode(assemble('x64')), arm64: encode(assemble('arm64')) } as const

function answer(arch: Arch, nr: number, ...args: readonly (number | bigint)[]): string {
  const value = evaluate(PROGRAMS[arch], { nr, arch: AUDIT_ARCH[arch], args })
  return ACTIONS[value] ?? `0x${value.toString(16)}`
}

/** Numbers from the kernel's own tables (arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h). */
const NUMBERS: Readonly<Record<string, readonly [x64: number | undefined, arm64: number | undefined]>> = {
  mount: [165, 40],
  umount2: [166, 39],
  pivot_root: [155, 41],
  chroot: [161, 51],
  open_tree: [428, 428],
  move_mount: [429, 429],
  fsopen: [430, 430],
  fsconfig: [431, 431],
  fsmount: [432, 432],
  fspick: [433, 433],
  mount_setattr: [442, 442],
  open_tree_attr: [467, 467],
  setns: [308, 268],
  init_module: [175, 105],
  finit_module: [313, 273],
  delete_module: [176, 106],
  create_module: [174, undefined],
  get_kernel_syms: [177, undefined],
  query_module: [178, undefined],
  kexec_load: [246, 104],
  kexec_file_load: [320, 294],
  bpf: [321, 280],
  perf_event_open: [298, 241],
  userfaultfd: [323, 282],
  io_uring_setup: [425, 425],
  io_uring_enter: [426, 426],
  io_uring_register: [427, 427],
  lookup_dcookie: [212, 18],
  keyctl: [250, 219],
  add_key: [248, 217],
  request_key: [249, 218],
  reboot: [169, 142],
  swapon: [167, 224],
  swapoff: [168, 225],
  settimeofday: [164, 170],
  clock_settime: [227, 112],
  clock_adjtime: [305, 266],
  adjtimex: [159, 171],
  sethostname: [170, 161],
  setdomainname: [171, 162],
  syslog: [103, 116],
  acct: [163, 89],
  quotactl: [179, 60],
  quotactl_fd: [443, 443],
  iopl: [172, undefined],
  ioperm: [173, undefined],
  vhangup: [153, 58],
  open_by_handle_at: [304, 265],
  fanotify_init: [300, 262],
  nfsservctl: [180, 42],
  modify_ldt: [154, undefined],
  uselib: [134, undefined],
  ustat: [136, undefined],
  sysfs: [139, undefined],
  _sysctl: [156, undefined],
}

const CALL = {
  x64: {
    read: 0,
    openat: 257,
    execve: 59,
    futex: 202,
    prctl: 157,
    seccomp: 317,
    ptrace: 101,
    kill: 62,
    wait4: 61,
    statx: 332,
    openat2: 437,
  },
  arm64: {
    read: 63,
    openat: 56,
    execve: 221,
    futex: 98,
    prctl: 167,
    seccomp: 277,
    ptrace: 117,
    kill: 129,
    wait4: 260,
    statx: 291,
    openat2: 437,
  },
} as const
const CLONE = { x64: 56, arm64: 220 } as const
const UNSHARE = { x64: 272, arm64: 97 } as const
const SOCKET = { x64: 41, arm64: 198 } as const
const IOCTL = { x64: 16, arm64: 29 } as const
const CLONE3 = 435

const NAMESPACE_FLAGS = {
  NEWNS: 0x00020000,
  NEWCGROUP: 0x02000000,
  NEWUTS: 0x04000000,
  NEWIPC: 0x08000000,
  NEWUSER: 0x10000000,
  NEWPID: 0x20000000,
  NEWNET: 0x40000000,
}
const NEWTIME = 0x80
const SIGCHLD = 17
/** The flags that glibc uses to create a thread. */
const THREAD = 0x003d0f00

const ARCHES = ['x64', 'arm64'] as const

describe.each(ARCHES)('the filter for %s', (arch) => {
  const at = arch === 'x64' ? 0 : 1

  test('knows every syscall that it lists as refused', () => {
    expect([...REFUSED_CALLS].sort()).toEqual(Object.keys(NUMBERS).sort())
  })

  const refused = Object.entries(NUMBERS).flatMap(([name, numbers]) =>
    numbers[at] === undefined ? [] : [[name, numbers[at]] as const],
  )
  test.each(refused)('refuses %s (%i)', (_, nr) => {
    expect(answer(arch, nr)).toBe('EPERM')
  })

  test.each(Object.entries(CALL[arch]))('allows %s (%i)', (_, nr) => {
    expect(answer(arch, nr)).toBe('allow')
  })

  test('refuses nothing else', () => {
    const special = [CLONE[arch], UNSHARE[arch], SOCKET[arch], IOCTL[arch], CLONE3]
    const expected = new Set(refused.map(([, nr]) => nr))
    for (let nr = 0; nr < 600; nr++) {
      if (special.includes(nr)) continue
      expect([nr, answer(arch, nr)]).toEqual([nr, expected.has(nr) ? 'EPERM' : 'allow'])
    }
  })

  test.each(Object.entries(NAMESPACE_FLAGS))('creates no namespace: %s', (_, flag) => {
    expect(answer(arch, CLONE[arch], flag | SIGCHLD)).toBe('EPERM')
    expect(answer(arch, CLONE[arch], flag)).toBe('EPERM')
    expect(answer(arch, UNSHARE[arch], flag)).toBe('EPERM')
    expect(answer(arch, UNSHARE[arch], flag | 0x400)).toBe('EPERM')
    // The kernel reads the lower half; the upper half must not hide a flag.
    expect(answer(arch, UNSHARE[arch], (1n << 40n) | BigInt(flag))).toBe('EPERM')
    expect(answer(arch, CLONE[arch], (1n << 40n) | BigInt(flag))).toBe('EPERM')
  })

  test('creates no time namespace either, and still accepts exit signals', () => {
    expect(answer(arch, UNSHARE[arch], NEWTIME)).toBe('EPERM')
    expect(answer(arch, CLONE[arch], SIGCHLD)).toBe('allow')
  })

  test.each([
    ['a fork', 'clone', SIGCHLD],
    ['a fork for posix_spawn', 'clone', 0x4000 | 0x100 | SIGCHLD],
    ['a thread', 'clone', THREAD],
    ['private files', 'unshare', 0x400],
    ['private working directory', 'unshare', 0x200],
    ['nothing', 'unshare', 0],
  ] as const)('allows %s', (_, call, flags) => {
    expect(answer(arch, call === 'clone' ? CLONE[arch] : UNSHARE[arch], flags)).toBe('allow')
  })

  test('reports clone3 as missing, so that programs use clone', () => {
    expect(answer(arch, CLONE3)).toBe('ENOSYS')
  })

  test.each([
    ['AF_UNIX', 1, 0, 'allow'],
    ['AF_INET', 2, 0, 'allow'],
    ['AF_INET6', 10, 0, 'allow'],
    ['AF_INET, TCP', 2, 6, 'allow'],
    ['AF_INET, UDP', 2, 17, 'allow'],
    ['AF_INET6, UDP', 10, 17, 'allow'],
    ['AF_INET, ICMP', 2, 1, 'EPROTONOSUPPORT'],
    ['AF_INET6, ICMPv6', 10, 58, 'EPROTONOSUPPORT'],
    ['AF_INET, MPTCP', 2, 262, 'EPROTONOSUPPORT'],
    ['AF_INET6, UDP-Lite', 10, 136, 'EPROTONOSUPPORT'],
    ['AF_INET, SCTP', 2, 132, 'EPROTONOSUPPORT'],
    ['AF_NETLINK, routes', 16, 0, 'allow'],
    ['AF_NETLINK, netfilter', 16, 12, 'EAFNOSUPPORT'],
    ['AF_NETLINK, audit', 16, 9, 'EAFNOSUPPORT'],
    ['AF_NETLINK, generic', 16, 16, 'EAFNOSUPPORT'],
    ['AF_UNSPEC', 0, 0, 'EAFNOSUPPORT'],
    ['AF_PACKET', 17, 0, 'EAFNOSUPPORT'],
    ['AF_ALG', 38, 0, 'EAFNOSUPPORT'],
    ['AF_VSOCK', 40, 0, 'EAFNOSUPPORT'],
    ['AF_BLUETOOTH', 31, 0, 'EAFNOSUPPORT'],
    ['AF_XDP', 44, 0, 'EAFNOSUPPORT'],
    ['AF_KEY', 15, 0, 'EAFNOSUPPORT'],
    ['a negative family', -1, 0, 'EAFNOSUPPORT'],
  ])('sockets: %s', (_, family, protocol, expected) => {
    expect(answer(arch, SOCKET[arch], family, 1, protocol)).toBe(expected)
  })

  test.each([
    ['TIOCSTI', 0x5412, 'EPERM'],
    ['TIOCLINUX', 0x541c, 'EPERM'],
    ['TIOCSTI below other bits', (1n << 32n) | 0x5412n, 'EPERM'],
    ['TIOCGWINSZ', 0x5413, 'allow'],
    ['TCGETS', 0x5401, 'allow'],
    ['FIONREAD', 0x541b, 'allow'],
  ])('ioctl %s', (_, request, expected) => {
    expect(answer(arch, IOCTL[arch], 0, request)).toBe(expected)
  })

  test.each(Object.entries(AUDIT_ARCH).filter(([name]) => name !== arch))(
    'kills a call of another architecture: %s',
    (_, other) => {
      for (const nr of [0, 1, CALL[arch].read, NUMBERS.mount?.[at] as number])
        expect(ACTIONS[evaluate(PROGRAMS[arch], { nr, arch: other })]).toBe('kill')
    },
  )

  test('is a program that the kernel accepts', () => {
    const instructions = assemble(arch)
    expect(instructions.length).toBeLessThanOrEqual(4096)
    expect(instructions.at(-1)?.[0]).toBe(0x06)
    for (const [index, [code, jt, jf, k]] of instructions.entries()) {
      for (const offset of (code & 7) === 5 ? [jt, jf] : []) {
        expect(Number.isInteger(offset) && offset >= 0 && offset <= 255).toBe(true)
        expect(index + 1 + offset).toBeLessThan(instructions.length)
      }
      expect(Number.isInteger(k) && k >= 0 && k <= 0xffffffff).toBe(true)
    }
  })
})

describe('x32, the second syscall table of the same architecture', () => {
  test.each([0, 59, 165, 512, 520])('call %i does not exist', (nr) => {
    expect(answer('x64', 0x40000000 + nr)).toBe('ENOSYS')
  })

  test('nor does a negative number', () => {
    expect(answer('x64', -1)).toBe('ENOSYS')
  })
})

describe('encode', () => {
  test('is 8 bytes per instruction, little endian', () => {
    expect([...encode([[0x15, 1, 2, 0xc000003e]])]).toEqual([0x15, 0, 1, 2, 0x3e, 0, 0, 0xc0])
    expect([...encode([[0x1234, 255, 0, 0x80000000]])]).toEqual([0x34, 0x12, 255, 0, 0, 0, 0, 0x80])
    expect(encode([]).length).toBe(0)
    for (const arch of ARCHES) expect(PROGRAMS[arch].length).toBe(assemble(arch).length * 8)
  })
})
