import { describe, expect, test } from 'vitest'
import type { Backend } from '../backends/backend.ts'
import { type MockAnswer, mock } from '../backends/mock/backend.ts'
import { SandboxRegistry } from '../backends/registry.ts'
import type { Command } from '../model/command.ts'
import type { Action, Decision } from '../model/decision.ts'
import { SandboxError } from '../model/errors.ts'
import type { Event, EventSink } from '../model/event.ts'
import type { RealPath } from '../model/plan.ts'
import { tenantGrants } from '../policy/grants/tenancy.ts'
import { type Observed, sandboxPolicyOf } from '../policy/plan.ts'
import { Gate, type WorkingDirectory } from './gate.ts'
import type { Sandbox } from './sandbox.ts'

/** The real gate and sandbox, with the mock backend and an audit log in memory. */

function there(path: string): Observed {
  const real = path as RealPath
  const fact = { real, kind: 'dir', dev: '1', ino: '2', uid: 0, gid: 0 } as const
  return {
    state: 'exists',
    normal: path,
    symlinks: [],
    real,
    thing: { kind: 'dir', nlink: 1 },
    fact,
    blockedInside: [],
    repositories: [],
  }
}

/** Keeps appended events in order; `fails` decides which appends fail. */
class Trail implements EventSink {
  readonly events: Event[] = []
  readonly #fails: (count: number) => boolean
  #count = 0

  constructor(fails: (count: number) => boolean = () => false) {
    this.#fails = fails
  }

  async append(event: Event): Promise<void> {
    if (this.#fails(this.#count++)) throw new SandboxError('trail-unwritable', 'the disk is full')
    this.events.push(event)
  }

  get names(): string[] {
    return this.events.map(({ event, state, action, approved }) =>
      [event, state ?? action ?? approved].filter((word) => word !== undefined).join(' '),
    )
  }
}

type Made = {
  readonly trail?: Trail
  readonly action?: Action
  readonly answer?: (command: Command) => MockAnswer
  readonly backend?: Backend
  readonly egress?: ConstructorParameters<typeof Gate>[0]['egress']
}

function testGate({ trail = new Trail(), action = 'sandbox', answer, backend, egress }: Made = {}) {
  const ran: string[] = []
  const places: WorkingDirectory[] = []
  const behind =
    backend ??
    mock((command) => {
      ran.push(command.argv.join(' '))
      return answer?.(command) ?? {}
    })
  let ids = 0
  const judge = async (_: unknown, place: WorkingDirectory): Promise<Decision> => {
    places.push(place)
    return { action, reason: `because ${action}`, rules: ['r1'], commands: [] }
  }
  const registry = new SandboxRegistry().register(behind, 0)
  const gate = new Gate({
    policy: sandboxPolicyOf({ policy: { allowed_host_prefixes: ['/w'] } }, '/home/u'),
    registry,
    trail,
    judge,
    observe: there,
    host: { uid: 0, home: '/home/u', stateDir: '/var/state', hostMemoryMb: 1000, cwd: '/w/sub' },
    newId: (prefix) => `${prefix}_${++ids}`,
    ...(egress && { egress }),
  })
  const open = (spec: object = {}): Promise<Sandbox> =>
    gate.open({ backend: 'mock', workspace: '/w', agentId: 'agent-7', ...spec })
  return { gate, trail, ran, places, open, registry }
}

const codeOf = (promise: Promise<unknown>): Promise<string> =>
  promise.then(
    () => 'fine',
    (error: unknown) => (error instanceof SandboxError ? error.code : String(error)),
  )

test.each([
  ['that owns the sandbox', { owner: 'acme' }, 'acme'],
  ['whose code runs', { owner: 'acme', reachesAs: { tenant: 'other', operator: false } }, 'other'],
  ['that asks', { requester: { tenant: 'acme', operator: false } }, 'acme'],
])('the proxy connects for the tenant %s', async (_, options, tenant) => {
  const tenants: (string | undefined)[] = []
  const { gate } = testGate({
    egress: async (_spec, _allowed, who) => {
      tenants.push(who)
      throw new SandboxError('unsupported', 'there is no proxy')
    },
  })
  const network = { mode: 'fetch', allowHosts: ['a.example'] }
  expect(await codeOf(gate.open({ backend: 'mock', workspace: '/w', network }, options))).toBe('unsupported')
  expect(tenants).toEqual([tenant])
})

describe('a permitted command', () => {
  test.each<[Action, boolean]>([
    ['sandbox', false],
    ['allow', false],
    ['ask', true],
  ])('runs and is recorded, with the decision %s', async (action, asked) => {
    const { open, ran, trail } = testGate({ action })
    const sandbox = await open()
    const done = await sandbox.exec(['echo', 'a'], { approve: () => true })
    await sandbox.close()
    expect(ran).toEqual(['echo a'])
    expect(done).toMatchObject({ outcome: { kind: 'exited', code: 0 }, execId: 'ex_2', decision: { action } })
    expect(trail.names).toEqual([
      'SandboxState ready',
      `PolicyDecision ${action}`,
      ...(asked ? ['Approval approved'] : []),
      'Exec ended',
      'SandboxState destroyed',
    ])
  })

  test('has agent, sandbox and exec id in every event', async () => {
    const { open, trail } = testGate({
      action: 'ask',
      answer: () => ({ violations: [{ guarantee: 'fs.protect', details: 'write .git/config' }] }),
    })
    const sandbox = await open()
    await sandbox.exec('true', { approve: async () => true })
    await sandbox.close()
    expect(trail.events.map(({ agent_id, sandbox_id }) => [agent_id, sandbox_id])).toEqual(
      trail.events.map(() => ['agent-7', sandbox.id]),
    )
    const inside = trail.events.filter(({ event }) => event !== 'SandboxState')
    expect(inside.map(({ exec_id }) => exec_id)).toEqual(inside.map(() => 'ex_2'))
  })

  test('has no agent id in its events if none was given', async () => {
    const { open, trail } = testGate()
    await (await open({ agentId: undefined })).exec('true')
    expect(trail.events.every((event) => !('agent_id' in event))).toBe(true)
  })

  test('follows an event that describes the sandbox', async () => {
    const { open, trail } = testGate()
    await (await open({ waive: ['limit.pids'] })).exec('true')
    expect(trail.events[0]).toEqual({
      event: 'SandboxState',
      state: 'ready',
      sandbox_id: 'sb_1',
      agent_id: 'agent-7',
      backend: 'mock',
      level: 'native',
      preset: 'workspace-write',
      network: 'offline',
      mounts: [{ source: '/w', target: '/w', mode: 'rw' }],
      waived: ['limit.pids'],
    })
  })

  test('has its violations recorded with their type before its end', async () => {
    const violations = [
      { guarantee: 'fs.protect', details: 'write .git/config' },
      { guarantee: 'limit.wall', details: 'PASSWORD=hunter2' },
    ]
    const { open, trail } = testGate({
      answer: () => ({ violations, outcome: { kind: 'stopped', limit: 'wall' } }),
    })
    await (await open()).exec('true')
    expect(trail.events.slice(2)).toMatchObject([
      {
        event: 'SandboxViolation',
        violation_type: 'PathTraversal',
        guarantee: 'fs.protect',
        details: 'write .git/config',
      },
      {
        event: 'SandboxViolation',
        violation_type: 'Timeout',
        guarantee: 'limit.wall',
        details: 'PASSWORD=«redacted»',
      },
      { event: 'Exec', state: 'ended', outcome: { kind: 'stopped', limit: 'wall' } },
    ])
  })

  test('has its secrets removed from the audit log', async () => {
    const { open, trail, ran } = testGate()
    const sandbox = await open()
    await sandbox.exec('TOKEN=hunter2 curl x')
    await sandbox.exec(['curl', '--token', 'hunter2'])
    expect(JSON.stringify(trail.events)).not.toContain('hunter2')
    expect(ran).toEqual(['/bin/bash -c TOKEN=hunter2 curl x', 'curl --token hunter2'])
  })

  test('runs in a shell if it is a string, and as a program with arguments if it is a list', async () => {
    const { open, ran } = testGate()
    const sandbox = await open()
    await sandbox.exec('a | b')
    await sandbox.exec(['a', '|', 'b'])
    expect(ran).toEqual(['/bin/bash -c a | b', 'a | b'])
  })

  test('is judged for its working directory', async () => {
    const { open, places } = testGate()
    await (await open()).exec('true')
    expect(places).toMatchObject([{ workspace: '/w', cwd: '/w/sub', own: ['/tmp'] }])
  })

  test('is judged for a working directory other than the sandbox’s', async () => {
    const { open, places } = testGate()
    await (await open()).exec('rm -rf *', { cwd: '/w/other' })
    expect(places).toMatchObject([{ workspace: '/w', cwd: '/w/other', own: ['/tmp'] }])
  })
})

describe('a refused command', () => {
  test('does not run after `deny`, and is recorded', async () => {
    const { open, ran, trail } = testGate({ action: 'deny' })
    const sandbox = await open()
    const error = await sandbox
      .exec('rm -rf /', { approve: () => true })
      .catch((thrown: SandboxError) => thrown)
    expect(error).toMatchObject({ code: 'forbidden-command', message: 'because deny' })
    expect(ran).toEqual([])
    expect(trail.names).toEqual(['SandboxState ready', 'PolicyDecision deny'])
    expect(trail.events[1]).toMatchObject({
      subject: 'command',
      command: 'rm -rf /',
      reason: 'because deny',
      rules: ['r1'],
    })
  })

  test('does not end the sandbox', async () => {
    const { open, trail } = testGate({ action: 'deny' })
    const sandbox = await open()
    await codeOf(sandbox.exec('a'))
    await sandbox.close()
    expect(trail.names.at(-1)).toBe('SandboxState destroyed')
  })

  test.each<[string, { approve?: () => boolean | Promise<boolean> }]>([
    ['no approver', {}],
    ['a rejection', { approve: () => false }],
    ['a late rejection', { approve: async () => false }],
  ])('does not run after `ask` with %s', async (_, options) => {
    const { open, ran, trail } = testGate({ action: 'ask' })
    const sandbox = await open()
    expect(await codeOf(sandbox.exec('git push', options))).toBe('approval-required')
    expect(ran).toEqual([])
    const answers = options.approve ? ['Approval rejected'] : []
    expect(trail.names).toEqual(['SandboxState ready', 'PolicyDecision ask', ...answers])
  })

  test('has its approval request recorded before the answer, and gets author and reason of a rejection', async () => {
    const { open, trail } = testGate({ action: 'ask' })
    const sandbox = await open()
    const approve = (_: unknown, execId: string) => {
      expect(trail.names.at(-1)).toBe('PolicyDecision ask')
      expect(trail.events.at(-1)).toMatchObject({ exec_id: execId })
      return { approved: false, by: 'key_7', reason: 'use the mirror' }
    }
    const refused = await sandbox.exec('git push', { approve }).catch((error: SandboxError) => error)
    expect(refused).toMatchObject({ code: 'approval-required' })
    expect((refused as SandboxError).message).toMatch(/\(rejected by `key_7`: use the mirror\)$/)
    expect(trail.events.at(-1)).toMatchObject({
      event: 'Approval',
      state: 'rejected',
      approved: false,
      answered_by: 'key_7',
      reason: 'use the mirror',
      exec_id: expect.stringMatching(/^ex_/),
    })
  })

  test('does not run if its approval fails', async () => {
    const { open, ran } = testGate({ action: 'ask' })
    const sandbox = await open()
    expect(await codeOf(sandbox.exec('git push', { approve: () => Promise.reject(new Error('gone')) }))).toBe(
      'Error: gone',
    )
    expect(ran).toEqual([])
  })

  test.each<[string, string | string[], string]>([
    ['nothing', '', 'no-command'],
    ['blanks', '  \n', 'no-command'],
    ['an empty list', [], 'no-command'],
    ['an empty program', ['', 'a'], 'no-command'],
    ['a NUL in a line', 'a\0b', 'invalid-input'],
    ['a NUL in a word', ['a', 'b\0'], 'invalid-input'],
  ])('is not accepted: %s', async (_, command, code) => {
    const { open, ran } = testGate()
    expect(await codeOf((await open()).exec(command))).toBe(code)
    expect(ran).toEqual([])
  })
})

describe('if the audit log cannot be written', () => {
  test.each([
    ['from the beginning', 0],
    ['from the decision on', 1],
  ])('%s, nothing is executed', async (_, from) => {
    const { open, ran } = testGate({ trail: new Trail((count) => count >= from) })
    const sandbox = await open()
    expect(await codeOf(sandbox.exec('true'))).toBe('trail-unwritable')
    expect(ran).toEqual([])
  })

  test('an approval is not accepted', async () => {
    const { open, ran } = testGate({ action: 'ask', trail: new Trail((count) => count >= 2) })
    expect(await codeOf((await open()).exec('git push', { approve: () => true }))).toBe('trail-unwritable')
    expect(ran).toEqual([])
  })

  test('a result is not returned', async () => {
    const { open, ran } = testGate({ trail: new Trail((count) => count >= 2) })
    expect(await codeOf((await open()).exec('true'))).toBe('trail-unwritable')
    expect(ran).toEqual(['/bin/bash -c true'])
  })

  test('the sandbox is recorded before any later command runs', async () => {
    const { open, trail } = testGate({ trail: new Trail((count) => count === 0) })
    const sandbox = await open()
    expect(await codeOf(sandbox.exec('a'))).toBe('trail-unwritable')
    await codeOf(sandbox.exec('b'))
    expect(trail.names).toContain('SandboxState ready')
  })

  test('files cannot be written', async () => {
    const { open } = testGate({ trail: new Trail(() => true) })
    const sandbox = await open()
    expect(await codeOf(sandbox.files.write('/w/a', 'x'))).toBe('trail-unwritable')
  })

  test('closing still ends the sandbox, and reports the error', async () => {
    const { open } = testGate({ trail: new Trail(() => true) })
    const sandbox = await open()
    expect(await codeOf(sandbox.close())).toBe('trail-unwritable')
    expect(await codeOf(sandbox.exec('true'))).toBe('wrong-state')
  })
})

describe('closing a sandbox', () => {
  test('twice is harmless and recorded once', async () => {
    const { open, trail } = testGate()
    const sandbox = await open()
    await sandbox.close()
    await sandbox.close()
    expect(trail.names).toEqual(['SandboxState ready', 'SandboxState destroyed'])
  })

  test('twice at the same time is recorded once', async () => {
    const { open, trail } = testGate()
    const sandbox = await open()
    await Promise.all([sandbox.close(), sandbox.close()])
    expect(trail.names.filter((name) => name === 'SandboxState destroyed').length).toBe(1)
  })

  test('rejects later commands and file operations', async () => {
    const { open, ran } = testGate()
    const sandbox = await open()
    await sandbox.files.write('/w/a', 'x')
    await sandbox.close()
    expect(await codeOf(sandbox.exec('true'))).toBe('wrong-state')
    expect(await codeOf((async () => sandbox.files.read('/w/a'))())).toBe('wrong-state')
    expect(await codeOf((async () => sandbox.files.write('/w/a', 'y'))())).toBe('wrong-state')
    expect(ran).toEqual([])
  })

  test('is done by `await using`', async () => {
    const { open, trail } = testGate()
    {
      await using sandbox = await open()
      await sandbox.exec('true')
    }
    expect(trail.names.at(-1)).toBe('SandboxState destroyed')
  })
})

describe('opening a sandbox', () => {
  test.each<[string, unknown, string]>([
    ['an unknown field', { wrokspace: '/w' }, 'invalid-input'],
    ['a string', 'workspace', 'invalid-input'],
    ['a relative workspace', { workspace: 'w' }, 'path-not-absolute'],
    ['a workspace outside the prefixes', { workspace: '/other' }, 'forbidden-host-path'],
    ['an unknown backend', { backend: 'nobody' }, 'backend-unavailable'],
    ['no isolating backend', { workspace: '/w' }, 'backend-unavailable'],
    ['an image', { image: 'debian', backend: 'mock' }, 'unsupported'],
  ])('with %s is refused', async (_, spec, code) => {
    expect(await codeOf(testGate().gate.open(spec))).toBe(code)
  })

  test('on an unavailable backend is recorded', async () => {
    const { gate, trail } = testGate()
    await codeOf(gate.open({ workspace: '/w', agentId: 'agent-7' }))
    expect(trail.events).toMatchObject([
      { event: 'PolicyDecision', subject: 'sandbox', action: 'deny', agent_id: 'agent-7' },
    ])
  })

  test('with a spec that the policy refuses is recorded', async () => {
    const { gate, trail } = testGate()
    await codeOf(gate.open({ workspace: '/other', agentId: 'agent-7' }))
    expect(trail.events).toMatchObject([
      { event: 'PolicyDecision', subject: 'sandbox', action: 'deny', agent_id: 'agent-7' },
    ])
  })

  test('probes the backend again after it failed', async () => {
    let probes = 0
    const failing: Backend = {
      ...mock(),
      probe: async () => {
        probes++
        return mock().probe()
      },
      open: () => Promise.reject(new SandboxError('launch-failed', 'no')),
    }
    const { open } = testGate({ backend: failing })
    expect(await codeOf(open())).toBe('launch-failed')
    expect(await codeOf(open())).toBe('launch-failed')
    expect(probes).toBe(2)
  })

  test('records a command that fails to start', async () => {
    const { open, trail } = testGate({
      answer: () => {
        throw new SandboxError('launch-failed', 'the wall fell')
      },
    })
    expect(await codeOf((await open()).exec('true'))).toBe('launch-failed')
    expect(trail.events.at(-1)).toMatchObject({ event: 'Exec', state: 'failed', reason: 'the wall fell' })
  })
})

test('an engine image granted to one tenant is refused for another tenant', () => {
  const config = { tenant: [{ name: 'lent', images: ['operators/private'] }] }
  const gate = new Gate({
    policy: sandboxPolicyOf({}, '/home/u'),
    grantsOf: (requester) =>
      requester && !requester.operator
        ? tenantGrants(config, requester.tenant, { home: '/home/u', real: (path) => path })
        : undefined,
    registry: new SandboxRegistry(),
    trail: new Trail(),
    judge: async () => ({ action: 'allow', reason: '', rules: [], commands: [] }),
    observe: there,
    host: { uid: 0, home: '/home/u', stateDir: '/var/state', hostMemoryMb: 1000, cwd: '/' },
    newId: (prefix) => prefix,
  })
  const spec = { image: 'operators/private' }
  const plan = gate.plan(spec, { requester: { tenant: 'any', operator: true } })
  const use = (tenant: string, backend: string) => (): void =>
    gate.assertPermitted({ tenant, operator: false }, { ...spec, backend }, { plan })
  expect(use('plain', 'docker')).toThrow('may not use the image')
  expect(use('lent', 'docker')).not.toThrow()
  // Other backends run only images that Ringfence built, which every tenant may name.
  expect(use('plain', 'gvisor')).not.toThrow()
})
