import { describe, expect, test } from 'vitest'
import { boolean, list, number, object, oneOf, optional, type Shape, text } from '../../../model/shape.ts'
import {
  bootCalls,
  cloneCalls,
  type FirecrackerCall,
  jailedFiles,
  jailerArguments,
  pauseCall,
  resumeCall,
  saveCalls,
} from './firecracker.ts'
import { vfkitArguments, vfkitOrder, vzFiles } from './vz.ts'

/**
 * Labelled fakes: neither Firecracker nor Apple's Virtualization can run here. Each accepts only the documented fields of
 * the real program, in the documented order.
 */
const image = { vmlinux: '/i/vmlinux', initrd: '/i/initrd', root: '/i/root', digest: 'sha256:0' }
const machine = { id: 'sb-1', image, disk: '/run/sb-1/disk', memoryMb: 1024 }

const FIRECRACKER: Readonly<Record<string, Shape<unknown>>> = {
  'PUT /machine-config': object({
    vcpu_count: number({ integer: true, min: 1, max: 32 }),
    mem_size_mib: number({ integer: true, min: 1 }),
    smt: optional(boolean()),
    track_dirty_pages: optional(boolean()),
  }),
  'PUT /boot-source': object({
    kernel_image_path: text(),
    initrd_path: optional(text()),
    boot_args: optional(text()),
  }),
  'PUT /drives/*': object({
    drive_id: text(),
    path_on_host: text(),
    is_root_device: boolean(),
    is_read_only: optional(boolean()),
    cache_type: optional(oneOf('Unsafe', 'Writeback')),
    io_engine: optional(oneOf('Sync', 'Async')),
  }),
  'PUT /vsock': object({ guest_cid: number({ integer: true, min: 3 }), uds_path: text() }),
  'PUT /actions': object({ action_type: oneOf('InstanceStart', 'SendCtrlAltDel', 'FlushMetrics') }),
  'PATCH /vm': object({ state: oneOf('Paused', 'Resumed') }),
  'PUT /snapshot/create': object({
    snapshot_type: optional(oneOf('Full', 'Diff')),
    snapshot_path: text(),
    mem_file_path: text(),
  }),
  'PUT /snapshot/load': object({
    snapshot_path: text(),
    mem_backend: object({ backend_type: oneOf('File', 'Uffd'), backend_path: text() }),
    resume_vm: optional(boolean()),
  }),
}

class FakeFirecracker {
  state: 'new' | 'running' | 'paused' = 'new'
  readonly drives: string[] = []
  #kernel = false

  call({ method, path, body }: FirecrackerCall): void {
    const name = path.startsWith('/drives/') ? 'PUT /drives/*' : `${method} ${path}`
    const shape = FIRECRACKER[name]
    if (!shape) throw new Error(`400: no such call ${name}`)
    shape.parse(body, 'body')
    const setUp = [
      'PUT /machine-config',
      'PUT /boot-source',
      'PUT /drives/*',
      'PUT /vsock',
      'PUT /snapshot/load',
    ]
    if (setUp.includes(name) && this.state !== 'new') throw new Error(`400: ${name} after the start`)
    if (name === 'PUT /boot-source') this.#kernel = true
    if (name === 'PUT /drives/*') this.#addDrive(path, body)
    if (name === 'PUT /actions' && !this.#kernel) throw new Error('400: no kernel')
    if (name === 'PUT /actions') this.state = 'running'
    if (name === 'PUT /snapshot/create' && this.state !== 'paused') throw new Error('400: it runs')
    if (name === 'PUT /snapshot/load') this.state = body.resume_vm ? 'running' : 'paused'
    if (name === 'PATCH /vm') this.state = body.state === 'Paused' ? 'paused' : 'running'
  }

  #addDrive(path: string, { drive_id }: FirecrackerCall['body']): void {
    if (path !== `/drives/${drive_id}`) throw new Error('400: the path names another drive')
    this.drives.push(String(drive_id))
  }
}

describe('firecracker’s documents', () => {
  test('boot, snapshot and restore in the required order', () => {
    const fake = new FakeFirecracker()
    for (const call of bootCalls(machine)) fake.call(call)
    expect(fake.drives).toEqual(['root', 'disk'])
    for (const call of saveCalls()) fake.call(call)
    expect(fake.state).toBe('paused')
    fake.call(resumeCall())
    fake.call(pauseCall())
    expect(fake.state).toBe('paused')
  })

  test('a clone stays paused until it has its identity', () => {
    const fake = new FakeFirecracker()
    for (const call of cloneCalls()) fake.call(call)
    expect(fake.state).toBe('paused')
  })

  test('the fake refuses unknown fields', () => {
    const fake = new FakeFirecracker()
    const [first] = bootCalls(machine) as [FirecrackerCall]
    expect(() => fake.call({ ...first, body: { ...first.body, vsock_override: {} } })).toThrow()
    expect(() => fake.call({ method: 'PUT', path: '/network-interfaces/eth0', body: {} })).toThrow()
    expect(() =>
      fake.call({ method: 'PUT', path: '/actions', body: { action_type: 'InstanceStart' } }),
    ).toThrow()
  })

  test('the jail names a user, groups and nothing of the host', () => {
    const args = jailerArguments(machine, {
      firecracker: '/usr/bin/firecracker',
      base: '/srv',
      uid: 70,
      gid: 70,
      cpus: 1,
    })
    expect(args).toContain('--new-pid-ns')
    expect(args.slice(args.indexOf('--') + 1)).toEqual(['--api-sock', 'api.sock'])
    expect(args.filter((word) => word.startsWith('memory.max='))).toEqual([
      `memory.max=${1152 * 1024 * 1024}`,
    ])
    expect([...jailedFiles(machine).values()]).toEqual([
      '/i/vmlinux',
      '/i/initrd',
      '/i/root',
      '/run/sb-1/disk',
    ])
    const named = JSON.stringify(
      [...bootCalls(machine), ...saveCalls(), ...cloneCalls()].map(({ body }) => body),
    )
    expect(named).not.toMatch(/"\//)
  })
})

const VFKIT_DEVICES: Readonly<Record<string, readonly string[]>> = {
  'virtio-blk': ['path', 'deviceId', 'readonly'],
  'virtio-vsock': ['port', 'socketURL', 'connect', 'listen'],
  'virtio-rng': [],
}
const VFKIT_FLAGS = ['--cpus', '--memory', '--bootloader', '--device', '--restful-uri']

/** Parses a command line like vfkit, and refuses unknown arguments. */
function fakeVfkit(args: readonly string[]): readonly string[] {
  const devices: string[] = []
  for (let at = 0; at < args.length; at += 2) {
    const [flag = '', value = ''] = args.slice(at, at + 2)
    if (!VFKIT_FLAGS.includes(flag)) throw new Error(`unknown flag: ${flag}`)
    if (flag !== '--device') continue
    const [name = '', ...options] = value.split(',')
    const known = VFKIT_DEVICES[name]
    if (!known) throw new Error(`unknown device type: ${name}`)
    const wrong = options.find((option) => !known.includes(option.split('=')[0] as string))
    if (wrong !== undefined) throw new Error(`unknown option: ${wrong}`)
    devices.push(name)
  }
  return devices
}

test('vfkit’s arguments: two drives, the agent’s socket, randomness, and nothing else', () => {
  const vz = {
    image,
    disk: '/run/disk',
    memoryMb: 1024,
    channel: '/run/agent.sock',
    control: '/run/control.sock',
  }
  const args = vfkitArguments(vz)
  expect(fakeVfkit(args)).toEqual(['virtio-blk', 'virtio-blk', 'virtio-vsock', 'virtio-rng'])
  expect(() => fakeVfkit([...args, '--device', 'virtio-net,nat'])).toThrow(/unknown device/)
  expect(vzFiles(vz)).toEqual(['/i/vmlinux', '/i/initrd', '/i/root', '/run/disk'])
  expect(
    object({ state: oneOf('Pause', 'Resume', 'Stop', 'HardStop') }).parse(vfkitOrder('Pause').body, 'body'),
  ).toEqual({
    state: 'Pause',
  })
  expect(list(text()).parse([...args], 'args')).toHaveLength(args.length)
})
