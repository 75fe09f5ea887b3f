import type { Command, ExecResult } from '../../model/command.ts'
import { SandboxError } from '../../model/errors.ts'
import { GUARANTEE_NAMES } from '../../model/guarantee.ts'
import { isPlan, type Plan } from '../../model/plan.ts'
import type { Backend, BackendSandbox, Probe } from '../backend.ts'

export type MockAnswer = Partial<Pick<ExecResult, 'outcome' | 'stdout' | 'stderr' | 'violations'>>

/**
 * An in-memory backend for callers' own tests: runs nothing, keeps files in a map, answers as it was told.
 * Nothing happens in it, so it keeps every guarantee; it is never chosen but by name.
 */
export function mock(answer: (command: Command) => MockAnswer = () => ({})): Backend {
  return {
    name: 'mock',
    level: 'native',
    byNameOnly: true,
    emulated: false,
    probe: async (): Promise<Probe> => ({ available: true, guarantees: GUARANTEE_NAMES, startMs: 0 }),
    async open(plan: Plan): Promise<BackendSandbox> {
      if (!isPlan(plan)) throw new SandboxError('internal', 'a backend accepts only plans that policy made')
      return mockSandbox(answer)
    },
  }
}

function mockSandbox(answer: (command: Command) => MockAnswer): BackendSandbox {
  const files = new Map<string, Uint8Array>()
  let closed = false
  const alive = (): void => {
    if (closed) throw new SandboxError('wrong-state', 'the sandbox is closed')
  }
  return {
    async exec(command, io) {
      alive()
      await io?.permit
      const { outcome = { kind: 'exited', code: 0 }, stdout = new Uint8Array(), ...rest } = answer(command)
      if (typeof io?.output === 'function') io.output('stdout', stdout)
      const empty = {
        stderr: new Uint8Array(),
        truncated: false,
        durationMs: 0,
        violations: [],
        layers: ['mock'],
      }
      return { ...empty, outcome, stdout, ...rest }
    },
    async read(path) {
      alive()
      const data = files.get(path)
      if (!data) throw new SandboxError('path-traversal', `cannot reach \`${path}\` in the sandbox`)
      return data
    },
    async write(path, data) {
      alive()
      files.set(path, data.slice())
    },
    async close() {
      closed = true
      files.clear()
    },
  }
}
