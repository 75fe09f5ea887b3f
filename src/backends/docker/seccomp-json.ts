import { type Arch, CLONE_NAMESPACES, NEW_NAMESPACES, REFUSED_CALLS } from '../bubblewrap/seccomp.ts'

type Condition = {
  readonly index: number
  readonly value: number
  readonly valueTwo?: number
  readonly op: string
}
type Rule = {
  readonly names: readonly string[]
  readonly action: string
  readonly errnoRet?: number
  readonly args?: readonly Condition[]
}

const EPERM = 1
const ENOSYS = 38
const EAFNOSUPPORT = 97
/** AF_UNIX, AF_INET, AF_INET6, AF_NETLINK. */
const FAMILIES = [1, 2, 10, 16]
const LAST_FAMILY = 16
const TERMINAL_INPUT = [0x5412, 0x541c]

const refuse = (names: readonly string[], errnoRet = EPERM, arg?: Condition): Rule => ({
  names,
  action: 'SCMP_ACT_ERRNO',
  errnoRet,
  ...(arg ? { args: [arg] } : {}),
})

const bitsOf = (mask: number): readonly number[] =>
  Array.from({ length: 32 }, (_, index) => (1 << index) >>> 0).filter((bit) => (mask & bit) !== 0)

/** Matches any of these bits: engines combine conditions on one argument with `and`, so each bit is a rule. */
const refuseBits = (name: string, mask: number): readonly Rule[] =>
  bitsOf(mask).map((bit) =>
    refuse([name], EPERM, { index: 0, value: bit, valueTwo: bit, op: 'SCMP_CMP_MASKED_EQ' }),
  )

/** What the agent does itself, before it loads our filter, which refuses these calls to every command. */
export type AgentPart = 'enters-root' | 'isolates'
const AGENT_CALLS: Readonly<Record<AgentPart, readonly string[]>> = {
  'enters-root': ['setns'],
  isolates: ['mount', 'umount2', 'open_tree', 'move_mount', 'mount_setattr'],
}

/**
 * The same rules as our own filter, in the format of container engines, so that they apply from the container's first
 * instruction. The agent loads the exact filter on top of it.
 */
export function engineProfile(arch: Arch, agentMay: readonly AgentPart[] = []): string {
  const own = agentMay.flatMap((part) => AGENT_CALLS[part])
  const isolates = agentMay.includes('isolates')
  const families = Array.from({ length: LAST_FAMILY }, (_, family) => family).filter(
    (family) => !FAMILIES.includes(family),
  )
  return JSON.stringify({
    defaultAction: 'SCMP_ACT_ALLOW',
    architectures: [arch === 'arm64' ? 'SCMP_ARCH_AARCH64' : 'SCMP_ARCH_X86_64'],
    syscalls: [
      refuse(REFUSED_CALLS.filter((name) => !own.includes(name))),
      refuse(['clone3'], ENOSYS),
      ...refuseBits('clone', isolates ? 0 : CLONE_NAMESPACES),
      ...refuseBits('unshare', isolates ? 0 : NEW_NAMESPACES),
      ...families.map((value) => refuse(['socket'], EAFNOSUPPORT, { index: 0, value, op: 'SCMP_CMP_EQ' })),
      refuse(['socket'], EAFNOSUPPORT, { index: 0, value: LAST_FAMILY, op: 'SCMP_CMP_GT' }),
      ...TERMINAL_INPUT.map((value) => refuse(['ioctl'], EPERM, { index: 1, value, op: 'SCMP_CMP_EQ' })),
    ],
  })
}
