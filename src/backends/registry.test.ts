import { describe, expect, test } from 'vitest'
import type { Command, ExecResult } from '../model/command.ts'
import { SandboxError } from '../model/errors.ts'
import { GUARANTEE_NAMES, type Guarantee, type Level } from '../model/guarantee.ts'
import type { Plan } from '../model/plan.ts'
import { parseSpec } from '../model/spec.ts'
import { planFor, sandboxPolicyOf } from '../policy/plan.ts'
import type { Backend, Probe } from './backend.ts'
import { mock } from './mock/backend.ts'
import { missingOf, type ProbeCache, SandboxRegistry } from './registry.ts'

function planned(spec: Record<string, unknown> = {}): Plan {
  const nothing = {
    state: 'unreadable',
    normal: '/',
    symlinks: [],
    fact: undefined,
    blockedInside: [],
    repositories: [],
  } as const
  const facts = { uid: 0, home: '/root', stateDir: nothing, hostMemoryMb: 1000, cwd: '/', paths: new Map() }
  const plan = planFor(sandboxPolicyOf({}, '/root'), parseSpec(spec), facts)
  if (plan instanceof SandboxError) throw plan
  return plan
}

const GOOD: Probe = { available: true, guarantees: GUARANTEE_NAMES, startMs: 1 }
const without = (...missing: Guarantee[]): Probe => ({
  available: true,
  guarantees: GUARANTEE_NAMES.filter((name) => !missing.includes(name)),
  startMs: 1,
})
const BAD: Probe = { available: false, reason: 'it is not installed', fix: 'install it' }

type Made = {
  readonly level?: Level
  readonly byNameOnly?: boolean
  readonly emulated?: boolean
  readonly fingerprint?: () => string
}

/** A backend with a fixed probe result; `probes` counts the calls. */
function backend(name: string, probe: Probe | (() => Probe), made: Made = {}): Backend & { probes: number } {
  const { level = 'os', byNameOnly = false, emulated = false, fingerprint } = made
  return {
    ...mock(),
    name,
    level,
    byNameOnly,
    emulated,
    probes: 0,
    async probe() {
      this.probes++
      return typeof probe === 'function' ? probe() : probe
    },
    ...(fingerprint ? { fingerprint } : {}),
  }
}

const registryOf = (...entries: readonly (readonly [Backend, number])[]): SandboxRegistry => {
  const registry = new SandboxRegistry()
  for (const [one, priority] of entries) registry.register(one, priority)
  return registry
}

const chosen = async (registry: SandboxRegistry, spec: Record<string, unknown> = {}): Promise<string> =>
  registry.select(planned(spec)).then(
    (one) => one.name,
    (error: SandboxError) => error.code,
  )

describe('selection', () => {
  const strong = backend('strong', GOOD, { level: 'microvm' })
  const weak = backend('weak', GOOD)
  const broken = backend('broken', BAD, { level: 'gvisor' })
  const leaky = backend('leaky', without('proc.hidden', 'limit.pids'), { level: 'container' })
  const shy = backend('shy', GOOD, { byNameOnly: true, level: 'microvm' })
  const slow = backend('slow', GOOD, { emulated: true, level: 'microvm' })
  const none = backend('none', without(...GUARANTEE_NAMES), { level: 'native', byNameOnly: true })

  test.each<[string, readonly string[], Record<string, unknown>, string]>([
    ['the first of the order', ['weak', 'strong'], {}, 'weak'],
    ['the next of the order', ['broken', 'strong'], {}, 'strong'],
    [
      'no backend outside of the order, if those in it are unavailable',
      ['broken'],
      {},
      'backend-unavailable',
    ],
    ['no backend outside of the order, if those in it lack a guarantee', ['leaky'], {}, 'missing-guarantee'],
    [
      'no backend outside of the order, if those in it are too weak',
      ['weak'],
      { minIsolation: 'gvisor' },
      'backend-unavailable',
    ],
    ['none, if the order is empty', [], {}, 'backend-unavailable'],
    ['a backend outside of the order, if it is named', ['strong'], { backend: 'weak' }, 'weak'],
  ])('with an order of the operator: %s', async (_, order, spec, expected) => {
    const registry = registryOf([strong, 9], [weak, 5], [leaky, 3], [broken, 1])
    registry.setOrder(order)
    expect(await chosen(registry, spec)).toBe(expected)
  })

  test.each<[string, readonly (readonly [Backend, number])[], Record<string, unknown>, string]>([
    [
      'the highest priority',
      [
        [weak, 1],
        [strong, 2],
      ],
      {},
      'strong',
    ],
    [
      'the highest priority, in any order of registration',
      [
        [strong, 1],
        [weak, 2],
      ],
      {},
      'weak',
    ],
    [
      'the next available backend',
      [
        [broken, 9],
        [weak, 1],
      ],
      {},
      'weak',
    ],
    [
      'the next backend with all needed guarantees',
      [
        [leaky, 9],
        [weak, 1],
      ],
      {},
      'weak',
    ],
    [
      'a backend that needs a waiver, if the waiver is given',
      [
        [leaky, 9],
        [weak, 1],
      ],
      { waive: ['proc.hidden', 'limit.pids'] },
      'leaky',
    ],
    [
      'no backend below the requested level',
      [
        [weak, 9],
        [strong, 1],
      ],
      { minIsolation: 'gvisor' },
      'strong',
    ],
    ['no backend registered', [], {}, 'backend-unavailable'],
    ['no backend with the requested level', [[weak, 9]], { minIsolation: 'microvm' }, 'backend-unavailable'],
    ['only unavailable backends', [[broken, 1]], {}, 'backend-unavailable'],
    ['only backends with missing guarantees', [[leaky, 1]], {}, 'missing-guarantee'],
    [
      'unavailable backends, and backends with missing guarantees',
      [
        [broken, 2],
        [leaky, 1],
      ],
      {},
      'missing-guarantee',
    ],
    ['never a backend that must be named', [[shy, 9]], {}, 'backend-unavailable'],
    [
      'a backend that must be named, by its name',
      [
        [shy, 9],
        [weak, 10],
      ],
      { backend: 'shy' },
      'shy',
    ],
    ['never an emulated backend', [[slow, 9]], {}, 'backend-unavailable'],
    ['an emulated backend, by its name', [[slow, 9]], { backend: 'slow' }, 'slow'],
    ['an unknown name', [[weak, 9]], { backend: 'other' }, 'backend-unavailable'],
    [
      'no other backend for a named backend that is unavailable',
      [
        [broken, 1],
        [weak, 9],
      ],
      { backend: 'broken' },
      'backend-unavailable',
    ],
    [
      'no other backend for a named backend that lacks a guarantee',
      [
        [leaky, 1],
        [weak, 9],
      ],
      { backend: 'leaky' },
      'missing-guarantee',
    ],
    [
      'no other backend for a named backend below the requested level',
      [
        [weak, 1],
        [strong, 9],
      ],
      { backend: 'weak', minIsolation: 'microvm' },
      'missing-guarantee',
    ],
    ['never a backend without isolation', [[none, 9]], {}, 'backend-unavailable'],
    ['an image that no backend supports', [[weak, 9]], { image: 'debian' }, 'unsupported'],
    ['the mock by its name', [[mock(), 0]], { backend: 'mock' }, 'mock'],
    ['the mock never by itself', [[mock(), 99]], {}, 'backend-unavailable'],
  ])('%s', async (_, entries, spec, expected) => {
    expect(await chosen(registryOf(...entries), spec)).toBe(expected)
  })

  test('the error says what is missing and how to waive it', async () => {
    const error = await registryOf([leaky, 1], [broken, 2])
      .select(planned())
      .catch((thrown: SandboxError) => thrown)
    expect(error).toMatchObject({
      code: 'missing-guarantee',
      message: 'leaky: cannot guarantee: proc.hidden, limit.pids',
      hint: 'choose another backend, or waive by name: --waive proc.hidden --waive limit.pids',
      reasons: ['broken: it is not installed', 'leaky: cannot guarantee: proc.hidden, limit.pids'],
    })
  })

  test('the error for a missing backend says how to install it', async () => {
    const error = await registryOf([broken, 1])
      .select(planned())
      .catch((thrown: SandboxError) => thrown)
    expect(error).toMatchObject({
      code: 'backend-unavailable',
      message: 'broken: it is not installed',
      hint: 'install it',
    })
  })

  test('a plan for native needs only the requested limits', async () => {
    const native = backend('native', without(...GUARANTEE_NAMES.filter((name) => name !== 'limit.wall')), {
      level: 'native',
      byNameOnly: true,
    })
    expect(await chosen(registryOf([native, 0]), { backend: 'native', limits: { wallMs: 5 } })).toBe('native')
    expect(await chosen(registryOf([native, 0]), { backend: 'native', limits: { memoryMb: 5 } })).toBe(
      'missing-guarantee',
    )
  })
})

describe('the list', () => {
  test('is sorted by priority, and each name occurs once', () => {
    const registry = registryOf(
      [backend('a', GOOD), 1],
      [backend('b', GOOD), 3],
      [backend('c', GOOD), 2],
      [backend('a', BAD), 9],
    )
    expect(registry.list().map(({ name }) => name)).toEqual(['a', 'b', 'c'])
    expect(registry.get('nobody')).toBeUndefined()
    expect(registry.get('b')?.name).toBe('b')
  })

  test('missing guarantees are those needed and not claimed', () => {
    expect(missingOf(['fs.read', 'cleanup'], ['cleanup', 'env.clean'])).toEqual(['fs.read'])
    expect(missingOf([], [])).toEqual([])
  })
})

function memory() {
  const kept = new Map<string, { fingerprint: string; probe: Probe }>()
  const store: ProbeCache = {
    load: (name, fingerprint) =>
      kept.get(name)?.fingerprint === fingerprint ? kept.get(name)?.probe : undefined,
    save: (name, fingerprint, probe) => void kept.set(name, { fingerprint, probe }),
    forget: (name) => void kept.delete(name),
  }
  return { kept, store }
}

describe('probes', () => {
  test('a positive result is cached', async () => {
    const one = backend('one', GOOD)
    const registry = registryOf([one, 1])
    await registry.probe('one')
    await registry.probe('one')
    await registry.select(planned())
    expect(one.probes).toBe(1)
  })

  test('a negative result is probed again, since the host may have changed', async () => {
    let answer: Probe = BAD as Probe
    const one = backend('one', () => answer)
    const registry = registryOf([one, 1])
    expect(await chosen(registry)).toBe('backend-unavailable')
    answer = GOOD
    expect(await chosen(registry)).toBe('one')
    expect(one.probes).toBe(2)
  })

  test('doctor probes again', async () => {
    const one = backend('one', GOOD)
    const registry = registryOf([one, 1])
    await registry.probe('one')
    await registry.probe('one', { fresh: true })
    expect(one.probes).toBe(2)
  })

  test('of an unknown name', async () => {
    expect(await registryOf([backend('one', GOOD), 1]).probe('two')).toEqual({
      available: false,
      reason: 'no such backend `two`',
      fix: 'known: one',
    })
  })

  test('a positive result is cached between processes while the host is the same', async () => {
    const { kept, store } = memory()
    let print = 'v1'
    const fingerprint = (): string => print
    const [first, second, third] = [1, 2, 3].map(() => backend('one', GOOD, { fingerprint })) as [
      ReturnType<typeof backend>,
      ReturnType<typeof backend>,
      ReturnType<typeof backend>,
    ]
    await new SandboxRegistry(store).register(first, 1).probe('one')
    await new SandboxRegistry(store).register(second, 1).probe('one')
    print = 'v2'
    await new SandboxRegistry(store).register(third, 1).probe('one')
    expect([first.probes, second.probes, third.probes]).toEqual([1, 0, 1])
    expect(kept.get('one')?.fingerprint).toBe('v2')
  })

  test('a negative result is not, nor one without a fingerprint', async () => {
    const { kept, store } = memory()
    await new SandboxRegistry(store)
      .register(backend('one', BAD, { fingerprint: () => 'v1' }), 1)
      .probe('one')
    await new SandboxRegistry(store).register(backend('two', GOOD), 1).probe('two')
    expect([...kept.keys()]).toEqual([])
  })

  test('a backend that failed after a positive probe is removed from the cache', async () => {
    const { kept, store } = memory()
    const one = backend('one', GOOD, { fingerprint: () => 'v1' })
    const registry = new SandboxRegistry(store).register(one, 1)
    await registry.probe('one')
    registry.invalidate('one')
    registry.invalidate('nobody')
    expect(kept.size).toBe(0)
    await registry.probe('one')
    expect(one.probes).toBe(2)
  })
})

describe('one shot', () => {
  /** The mock with a record of what happens to its sandboxes. */
  function watched(
    exec?: (command: Command, signal: AbortSignal | undefined) => Promise<Partial<ExecResult>>,
  ) {
    const seen = { opened: 0, closed: 0, ran: [] as string[] }
    const inner = mock((command) => {
      seen.ran.push(command.argv.join(' '))
      return { stdout: Buffer.from('out') }
    })
    const outer: Backend = {
      ...inner,
      async open(plan, signal) {
        const sandbox = await inner.open(plan, signal)
        seen.opened++
        return {
          ...sandbox,
          exec: async (command, io) => {
            const more = await exec?.(command, io?.signal)
            return { ...(await sandbox.exec(command, io)), ...more }
          },
          close: async () => {
            seen.closed++
            await sandbox.close()
          },
        }
      },
    }
    const registry = new SandboxRegistry().register(outer, 1)
    return { seen, shot: registry.oneShot(outer, () => planned({ backend: 'mock' })), registry, outer }
  }

  test('is available when its backend is', async () => {
    expect(await watched().shot.isAvailable()).toBe(true)
    const registry = registryOf([backend('one', BAD), 1])
    expect(await registry.oneShot(backend('one', BAD), planned).isAvailable()).toBe(false)
  })

  test('one command, one sandbox, nothing kept', async () => {
    const { seen, shot } = watched()
    const first = await shot.execute(['echo', 'a'])
    const second = await shot.execute(['echo', 'b'])
    expect(first).toMatchObject({ outcome: { kind: 'exited', code: 0 } })
    expect(Buffer.from(first.stdout).toString()).toBe('out')
    expect(first.id).not.toBe(second.id)
    expect(seen).toEqual({ opened: 2, closed: 2, ran: ['echo a', 'echo b'] })
    expect(shot.kill(first.id)).toBe(false)
  })

  const untilAborted = (_: Command, signal: AbortSignal | undefined): Promise<Partial<ExecResult>> =>
    new Promise((resolve) => {
      signal?.addEventListener('abort', () => resolve({ outcome: { kind: 'stopped', limit: 'cancelled' } }))
    })

  test('kill ends the given sandbox', async () => {
    const { seen, shot } = watched(untilAborted)
    const running = shot.execute(['sleep', '60'])
    await new Promise((resolve) => setTimeout(resolve, 10))
    expect(shot.kill('mock-7')).toBe(false)
    expect(shot.kill('mock-1')).toBe(true)
    expect((await running).outcome).toEqual({ kind: 'stopped', limit: 'cancelled' })
    expect(shot.kill('mock-1')).toBe(false)
    expect(seen.closed).toBe(1)
  })

  test('cleanup ends all sandboxes', async () => {
    const { seen, shot } = watched(untilAborted)
    const running = [shot.execute(['a']), shot.execute(['b'])]
    await new Promise((resolve) => setTimeout(resolve, 10))
    shot.cleanup()
    expect((await Promise.all(running)).map(({ outcome }) => outcome.kind)).toEqual(['stopped', 'stopped'])
    expect(seen).toMatchObject({ opened: 2, closed: 2 })
    shot.cleanup()
  })

  test('a command that fails closes its sandbox too', async () => {
    const { seen, shot } = watched(() => Promise.reject(new SandboxError('launch-failed', 'no')))
    await expect(shot.execute(['a'])).rejects.toThrow('no')
    expect(seen).toMatchObject({ opened: 1, closed: 1 })
    expect(shot.kill('mock-1')).toBe(false)
  })

  test('a sandbox that fails to open leaves nothing to kill', async () => {
    const closed: Backend = { ...mock(), open: () => Promise.reject(new SandboxError('launch-failed', 'no')) }
    const shot = new SandboxRegistry().register(closed, 1).oneShot(closed, () => planned({ backend: 'mock' }))
    await expect(shot.execute(['a'])).rejects.toThrow('no')
    expect(shot.kill('mock-1')).toBe(false)
  })

  test('a backend that cannot provide the plan runs nothing', async () => {
    const leaky = backend('leaky', without('fs.read'))
    const shot = new SandboxRegistry().register(leaky, 1).oneShot(leaky, planned)
    await expect(shot.execute(['a'])).rejects.toMatchObject({ code: 'missing-guarantee' })
  })
})

describe('the mock', () => {
  test('accepts nothing but plans', async () => {
    await expect(mock().open({ ...planned() } as Plan)).rejects.toMatchObject({ code: 'internal' })
  })

  test('keeps files until it is closed', async () => {
    const sandbox = await mock().open(planned())
    await sandbox.files.write('/a', [Buffer.from('x')])
    expect(await sandbox.files.stat('/a')).toMatchObject({ kind: 'file', size: 1 })
    await expect(sandbox.files.stat('/b')).rejects.toMatchObject({ code: 'file-not-found' })
    await sandbox.close()
    await sandbox.close()
    await expect(sandbox.exec({ argv: ['a'] })).rejects.toMatchObject({ code: 'wrong-state' })
  })
})
