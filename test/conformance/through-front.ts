import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { homedir } from 'node:os'
import { join } from 'node:path'
import type { Backend, BackendSandbox } from '../../src/backends/backend.ts'
import type { Command, ExecResult } from '../../src/model/command.ts'
import type { Plan } from '../../src/model/plan.ts'
import { BrokerKit } from '../cli/broker-kit.ts'

/**
 * The attacks of the suite, each as `ringfence run` through the native front and a broker. Node is disabled meanwhile, so
 * that what runs was started by the broker. What a broker leaves to Node (a proxy, isolated commands) runs as without it.
 */
export class FrontWay {
  readonly #kit = new BrokerKit({ HOME: homedir() })
  readonly #scripts = join(this.#kit.base, 'scripts')
  #served = 0
  #left = 0

  /** `sabotage` is the name of one that the broker applies to every launch. */
  constructor(sabotage?: string) {
    mkdirSync(this.#scripts)
    if (sabotage !== undefined) this.#breakBroker(sabotage)
  }

  /** How many commands the broker has run, and how many were not for it. */
  get counts(): string {
    return `${this.#served} commands through the broker, ${this.#left} sandboxes that it leaves to Node`
  }

  async run<T>(work: () => Promise<T>): Promise<T> {
    try {
      await this.#kit.start()
      return await this.#kit.withoutNodeAsync(work)
    } finally {
      this.#kit.remove()
    }
  }

  /** The backend with its commands started by the front; `probe` is what attacks may read. */
  wrap(backend: Backend, probe: string): Backend {
    return {
      name: backend.name,
      level: backend.level,
      byNameOnly: backend.byNameOnly,
      emulated: backend.emulated,
      probe: () => backend.probe(),
      open: async (plan, options) => {
        if (isServable(plan)) return this.#sandbox(plan, probe)
        this.#left++
        return backend.open(plan, options)
      },
    }
  }

  #sandbox(plan: Plan, probe: string): BackendSandbox {
    const refuse = (): never => {
      throw new Error('not through the front')
    }
    return {
      exec: (command) => this.#exec(plan, probe, command),
      start: refuse,
      get files() {
        return refuse()
      },
      connect: refuse,
      layers: refuse,
      ended: new Promise(() => {}),
      close: async () => {},
    }
  }

  /** The policy judges command lines, and would refuse many of these; a script in a file goes into the sandbox. Bash reads it at once and keeps no descriptor of it. */
  async #exec(plan: Plan, probe: string, { argv, env = {} }: Command): Promise<ExecResult> {
    const script = join(this.#scripts, `${this.#served}.sh`)
    writeFileSync(script, argv[2] as string)
    const variables = Object.entries(env).flatMap(([name, value]) => ['--env', `${name}=${value}`])
    const flags = [...flagsOf(plan), ...variables, '--read', probe, '--read', script]
    const secret = process.env.RF_SECRET
    const child = this.#kit.spawn(
      ['run', '--json', '--yes', ...flags, '--', '/bin/bash', '-c', `. ${script}`],
      secret === undefined ? {} : { RF_SECRET: secret },
    )
    child.stdin.end()
    const said: Record<'stdout' | 'stderr', Buffer[]> = { stdout: [], stderr: [] }
    for (const stream of ['stdout', 'stderr'] as const)
      child[stream].on('data', (chunk: Buffer) => said[stream].push(chunk))
    await new Promise((resolve) => child.once('close', resolve))
    const stdout = Buffer.concat(said.stdout).toString('utf8')
    if (!stdout.startsWith('{')) throw new Error(Buffer.concat(said.stderr).toString('utf8'))
    this.#served++
    return resultOf(JSON.parse(stdout) as Result)
  }

  /** Changes the copy of the package that the broker is started from: each launch vector goes through the sabotage. */
  #breakBroker(name: string): void {
    const dir = join(this.#kit.base, 'package', 'dist', 'cli')
    const call = `(vector => JSON.parse(require('node:child_process').execFileSync(process.execPath, ${JSON.stringify([process.argv[1], '--apply', name])}, { input: JSON.stringify(vector), cwd: ${JSON.stringify(process.cwd())}, maxBuffer: 1e8 })))(`
    let found = 0
    for (const file of readdirSync(dir)) {
      if (file.endsWith('.cache')) rmSync(join(dir, file))
      if (!file.endsWith('.cjs')) continue
      const text = readFileSync(join(dir, file), 'utf8')
      // The only call in the bubblewrap backend: `this.#parts.sabotage?.(vector) ?? vector`.
      const broken = text.replace(/this\.#\w+\.sabotage\?\.\(/g, () => {
        found++
        return call
      })
      if (broken !== text) writeFileSync(join(dir, file), broken)
    }
    if (found !== 1) throw new Error(`the launch of bubblewrap was found ${found} times`)
  }
}

/** `--apply NAME`: what the broken broker asks for. */
export function applySabotage(sabotage: (vector: readonly string[]) => readonly string[]): void {
  const vector = JSON.parse(readFileSync(0, 'utf8')) as string[]
  process.stdout.write(JSON.stringify(sabotage(vector)))
}

const isServable = ({ network, files, secrets, root, isolation }: Plan): boolean =>
  network.mode !== 'fetch' &&
  files.length === 0 &&
  secrets.length === 0 &&
  root === undefined &&
  isolation !== 'command'

const LIMIT_FLAGS = {
  wallMs: ['--timeout', 'ms'],
  idleMs: ['--idle', 'ms'],
  memoryMb: ['--memory', ''],
  diskMb: ['--disk', ''],
  pids: ['--pids', ''],
  cpus: ['--cpus', ''],
  outputBytes: ['--output', ''],
} as const

/** The options of `run` that lead to this plan. */
function flagsOf({ cwd, network, limits, nets, waived }: Plan): readonly string[] {
  const asked = (Object.keys(LIMIT_FLAGS) as (keyof typeof LIMIT_FLAGS)[]).filter(
    (name) => limits[name] !== undefined && !nets.includes(name),
  )
  return [
    ...['--backend', 'bubblewrap', '--workspace', cwd, '--network', network.mode],
    ...asked.flatMap((name) => [LIMIT_FLAGS[name][0], `${limits[name]}${LIMIT_FLAGS[name][1]}`]),
    ...waived.flatMap((name) => ['--waive', name]),
  ]
}

type Result = Pick<ExecResult, 'outcome' | 'truncated' | 'violations' | 'layers'> & {
  readonly stdout: string
  readonly stderr: string
  readonly duration_ms: number
}

const resultOf = ({ stdout, stderr, duration_ms, ...rest }: Result): ExecResult => ({
  ...rest,
  stdout: Buffer.from(stdout),
  stderr: Buffer.from(stderr),
  durationMs: duration_ms,
})
