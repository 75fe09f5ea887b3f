import type { Command, ExecResult } from '../../model/command.ts'
import { SandboxError } from '../../model/errors.ts'
import { GUARANTEE_NAMES } from '../../model/guarantee.ts'
import { isPlan, type Plan } from '../../model/plan.ts'
import type { Backend, BackendSandbox, Probe } from '../backend.ts'
import { mockFiles } from './files.ts'

/** The result that a mock command returns. */
export type MockAnswer = Partial<Pick<ExecResult, 'outcome' | 'stdout' | 'stderr' | 'violations'>>

/**
 * An in-memory backend for callers' own tests: runs nothing, stores files in a map, returns configured results.
 * Because nothing runs, it provides every guarantee; it is used only by name.
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
  let closed = false
  let isEnded: (reason: string) => void = () => {}
  const ended = new Promise<string>((resolve) => {
    isEnded = resolve
  })
  const alive = (): void => {
    if (closed) throw new SandboxError('wrong-state', 'the sandbox is closed')
  }
  return {
    async exec(command, io) {
      alive()
      await io?.permit
      const result = answered(answer, command)
      if (typeof io?.output === 'function') io.output('stdout', result.stdout)
      return result
    },
    async start(command, io) {
      alive()
      await io?.permit
      const result = answered(answer, command)
      if (typeof io?.output === 'function') io.output('stdout', result.stdout)
      const nothing = (): void => {}
      return {
        pid: 1,
        result: Promise.resolve(result),
        write: async () => {},
        endInput: nothing,
        signal: nothing,
        resize: nothing,
      }
    },
    files: mockFiles(alive),
    connect: async (port) => {
      throw new SandboxError('wrong-state', `nothing listens on port ${port}`)
    },
    layers: async () => ['mock'],
    ended,
    async close() {
      closed = true
      isEnded('closed')
    },
  }
}

function answered(answer: (command: Command) => MockAnswer, command: Command): ExecResult {
  const empty = {
    stderr: new Uint8Array(),
    truncated: false,
    durationMs: 0,
    violations: [],
    layers: ['mock'],
  }
  const { outcome = { kind: 'exited', code: 0 }, stdout = new Uint8Array(), ...rest } = answer(command)
  return { ...empty, outcome, stdout, ...rest }
}
