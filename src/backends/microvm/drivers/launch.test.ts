import { describe, expect, test } from 'vitest'
import { DESCRIPTORS, type Jail, jailArguments, type MachineLaunch, qemuArguments } from './launch.ts'

const launch: MachineLaunch = {
  accelerator: 'tcg',
  memoryMb: 1024,
  tscKhz: 2_000_000,
  memory: 'own',
  opensReadOnly: false,
  relocatesCode: false,
  incoming: false,
}
const valuesOf = (args: readonly string[], flag: string): readonly string[] =>
  args.flatMap((word, index) => (word === flag ? [args[index + 1] as string] : []))

describe('every machine', () => {
  const args = qemuArguments(launch)

  test('has three drives and the agent’s port, and no other device', () =>
    expect(valuesOf(args, '-device').map((device) => device.split(',')[0])).toEqual([
      'virtio-serial-device',
      'virtserialport',
      'virtio-blk-device',
      'virtio-blk-device',
      'virtio-blk-device',
    ]))

  test('has no network, no shared directory and no file by name', () => {
    const line = args.join(' ')
    expect(line).not.toMatch(/-netdev|-nic|-fsdev|-virtfs|virtio-net|vhost/)
    expect(args.filter((word) => /=\/(?!proc\/self\/fd\/\d+)/.test(word))).toEqual([])
  })

  test('cannot start programs or change its user', () =>
    expect(valuesOf(args, '-sandbox')).toEqual([
      'on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny',
    ]))

  test('has a read-only root and writes only to its disk', () => {
    const [root, disk, inputs] = valuesOf(args, '-blockdev')
    expect(root).toContain('read-only=on')
    expect(inputs).toContain('read-only=on')
    expect(disk).toContain(`/proc/self/fd/${DESCRIPTORS.disk}`)
  })
})

test('a template and its clone differ only in memory and start', () => {
  const written = qemuArguments({ ...launch, memory: 'written' })
  const clone = qemuArguments({ ...launch, memory: 'shared-template', incoming: true })
  const differing = clone.filter((word) => !written.includes(word))
  expect(differing).toEqual([expect.stringContaining('share=off'), '-incoming', 'defer'])
})

test('a newer QEMU opens a template read-only by itself', () =>
  expect(qemuArguments({ ...launch, memory: 'shared-template', opensReadOnly: true }).join(' ')).toContain(
    'share=off,readonly=on,rom=off',
  ))

test('with hardware virtualisation, no shortcut of the emulation is used', () => {
  const line = qemuArguments({ ...launch, accelerator: 'kvm' }).join(' ')
  expect(line).not.toMatch(/mitigations=off|norandmaps|tsc_early_khz|pit=off/)
})

test('only an emulator that would translate libraries at every address again gets fixed addresses', () => {
  expect(qemuArguments(launch).join(' ')).toContain('norandmaps')
  expect(qemuArguments({ ...launch, relocatesCode: true }).join(' ')).not.toContain('norandmaps')
})

describe('the jail', () => {
  const jail: Jail = {
    agent: '/agent',
    bwrap: '/usr/bin/bwrap',
    qemu: '/usr/bin/qemu',
    shown: ['/usr/bin/qemu', '/usr/share/qemu'],
    links: [{ path: '/lib64', target: 'usr/lib64' }],
    user: { uid: 70, gid: 70 },
    cgroups: ['/cg/a'],
    exit: undefined,
    preload: true,
    accelerator: 'tcg',
  }
  const args = jailArguments(jail, ['-M', 'microvm'])

  test('joins the groups and becomes the user before anything else', () =>
    expect(args.slice(0, 6)).toEqual(['run-as', '70', '70', '/cg/a', '--', '/usr/bin/bwrap']))

  test('shares no namespace with the host and cannot write anywhere', () => {
    for (const name of ['user', 'pid', 'ipc', 'uts', 'net']) expect(args).toContain(`--unshare-${name}`)
    expect(args).toContain('--die-with-parent')
    expect(args).not.toContain('--bind')
    expect(valuesOf(args, '--ro-bind')).toEqual(['/usr/bin/qemu', '/usr/share/qemu'])
    expect(valuesOf(args, '--remount-ro')).toEqual(['/'])
  })

  test('keeps an old QEMU from writing to its template', () =>
    expect(args.join(' ')).toContain(
      `LD_PRELOAD /proc/self/fd/${DESCRIPTORS.preload} --setenv RINGFENCE_TEMPLATE /proc/self/fd/${DESCRIPTORS.memory}`,
    ))

  test('has /dev/kvm only if it is used', () => {
    expect(args).not.toContain('/dev/kvm')
    expect(jailArguments({ ...jail, accelerator: 'kvm' }, [])).toContain('/dev/kvm')
  })
})
