import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { diagnose, isOlder } from './diagnose.ts'
import { type HostState, observeHost, wslOf } from './host-state.ts'

/** Recorded hosts: taken from the documentation and settings of such machines, not run on them. */

const DEBIAN_13: HostState = {
  platform: 'linux',
  kernel: '6.12.0-amd64',
  uid: 1000,
  bwrap: { version: '0.12.1', setuid: false },
  settings: { usernsClone: '1', maxUserns: '62000' },
  bwrapProfile: false,
  container: undefined,
  capabilities: '0000000000000000',
  cgroup: { version: 2, limits: ['memoryMb', 'pids', 'cpus'] },
  landlock: 6,
  wsl: undefined,
}

type Recorded = { readonly name: string; readonly host: Partial<HostState>; readonly ids: readonly string[] }

const RECORDED: readonly Recorded[] = [
  { name: 'a host with everything', host: {}, ids: [] },
  { name: 'no bwrap', host: { bwrap: undefined }, ids: ['no-bwrap'] },
  {
    name: 'Debian 12’s bwrap',
    host: { bwrap: { version: '0.8.0', setuid: false } },
    ids: ['bwrap-symlink-hole'],
  },
  {
    name: 'Ubuntu 20.04’s bwrap',
    host: { bwrap: { version: '0.4.0', setuid: false } },
    ids: ['bwrap-too-old'],
  },
  {
    name: 'a bwrap that says nothing',
    host: { bwrap: { version: '', setuid: false } },
    ids: ['bwrap-too-old'],
  },
  { name: 'a setuid bwrap', host: { bwrap: { version: '0.12.0', setuid: true } }, ids: ['bwrap-setuid'] },
  {
    name: 'Ubuntu 24.04',
    host: { settings: { apparmorUserns: '1', maxUserns: '62000' } },
    ids: ['apparmor-userns'],
  },
  {
    name: 'Ubuntu 24.04 with a profile',
    host: { settings: { apparmorUserns: '1' }, bwrapProfile: true },
    ids: [],
  },
  { name: 'Ubuntu 24.04 as root', host: { settings: { apparmorUserns: '1' }, uid: 0 }, ids: [] },
  { name: 'a hardened Debian', host: { settings: { usernsClone: '0' } }, ids: ['userns-off'] },
  { name: 'a hardened Debian as root', host: { settings: { usernsClone: '0' }, uid: 0 }, ids: [] },
  { name: 'RHEL with namespaces off', host: { settings: { maxUserns: '0' }, uid: 0 }, ids: ['userns-none'] },
  {
    name: 'a default Docker container',
    host: {
      container: 'Docker',
      uid: 0,
      capabilities: '00000000a80425fb',
      cgroup: { version: 2, limits: [] },
    },
    ids: ['nested-confined', 'cgroup-v2-rights'],
  },
  {
    name: 'a privileged container',
    host: { container: 'Kubernetes', uid: 0, capabilities: '000001ffffffffff' },
    ids: ['nested'],
  },
  {
    name: 'a user without a delegated group',
    host: { cgroup: { version: 2, limits: [] } },
    ids: ['cgroup-v2-rights'],
  },
  {
    name: 'control groups of version 1',
    host: { cgroup: { version: 1, limits: ['pids'] } },
    ids: ['cgroup-v1-rights'],
  },
  { name: 'a kernel without Landlock', host: { landlock: 0 }, ids: ['no-landlock'] },
  {
    name: 'an old kernel',
    host: { kernel: '5.10.0-30-amd64', landlock: 0 },
    ids: ['kernel-too-old', 'no-landlock'],
  },
  {
    name: 'WSL 1',
    host: { wsl: 1, kernel: '4.4.0-19041-Microsoft', landlock: 0 },
    ids: ['wsl1', 'kernel-too-old', 'no-landlock'],
  },
  { name: 'WSL 2', host: { wsl: 2, kernel: '5.15.153.1-microsoft-standard-WSL2' }, ids: ['wsl2'] },
  { name: 'macOS', host: { platform: 'darwin', bwrap: undefined }, ids: ['macos'] },
  { name: 'Windows', host: { platform: 'win32', bwrap: undefined }, ids: ['platform'] },
]

describe('recorded hosts', () => {
  test.each(RECORDED)('$name', ({ host, ids }) => {
    const notes = diagnose({ ...DEBIAN_13, ...host })
    expect(notes.map(({ id }) => id)).toEqual(ids)
    // Every problem that blocks or weakens isolation has a suggested action.
    for (const note of notes) if (note.weight !== 'tells') expect(note.fix).toBeTruthy()
  })

  test('the AppArmor note contains the whole profile', () => {
    const [note] = diagnose({ ...DEBIAN_13, settings: { apparmorUserns: '1' } })
    expect(note?.fix).toMatch(/profile bwrap \/usr\/bin\/bwrap flags=\(unconfined\) \{\n {2}userns,/)
    expect(note?.fix).toContain('apparmor_parser -r')
  })

  test('the note on the old bwrap says how Ringfence avoids its vulnerability', () => {
    const [note] = diagnose({ ...DEBIAN_13, bwrap: { version: '0.11.0', setuid: false } })
    expect(note).toMatchObject({ weight: 'tells', id: 'bwrap-symlink-hole' })
    expect(note?.text).toContain('follows no link')
  })

  test('the most severe comes first', () => {
    const notes = diagnose({
      ...DEBIAN_13,
      bwrap: { version: '0.9', setuid: true },
      landlock: 0,
      settings: { maxUserns: '0' },
    })
    expect(notes.map(({ weight }) => weight)).toEqual(['stops', 'weakens', 'tells', 'tells'])
  })
})

describe('detection of host properties', () => {
  test.each([
    ['0.8.0', '0.12.0', true],
    ['0.12.0', '0.12.0', false],
    ['0.12', '0.12.0', false],
    ['1.0', '0.12.0', false],
    ['', '0.8.0', true],
    ['6.18.44-foo', '5.14', false],
  ])('%s is below %s: %s', (a, b, expected) => expect(isOlder(a, b)).toBe(expected))

  test.each([
    ['Linux version 4.4.0-19041-Microsoft (Microsoft@Microsoft.com)', 1],
    ['Linux version 5.15.153.1-microsoft-standard-WSL2 (root@x)', 2],
    ['Linux version 6.12.0-amd64 (debian-kernel@lists.debian.org)', undefined],
  ])('%s', (version, expected) => expect(wslOf(version)).toBe(expected))

  test('this host: all fields are set, and the findings are readable', async () => {
    const host = await observeHost(join(process.cwd(), 'dist', 'guest', 'ringfence-agent'))
    expect(host.platform).toBe(process.platform)
    if (host.bwrap) expect(host.bwrap.version).toMatch(/^\d+\.\d+/)
    for (const note of diagnose(host)) expect(note.text).not.toBe('')
  })
})
