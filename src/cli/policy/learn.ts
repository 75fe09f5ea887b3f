import { existsSync } from 'node:fs'
import { constants } from 'node:os'
import { resolve } from 'node:path'
import { compose, type Ringfence } from '../../compose/compose.ts'
import { writeAtomically } from '../../host/files/atomic-file.ts'
import type { Use } from '../../model/command.ts'
import { exitCodeOf } from '../../model/command.ts'
import type { Decision } from '../../model/decision.ts'
import { SandboxError } from '../../model/errors.ts'
import { visible } from '../../model/text/visible.ts'
import { gathered, type Learned, learnedPolicy, usesOutside } from '../../policy/learned.ts'
import { parseAddress } from '../../policy/network/address.ts'
import { isInternalName, isMetadataName } from '../../policy/network/hosts.ts'
import type { Executed, Sandbox } from '../../supervisor/sandbox.ts'
import { parseOptions, usage } from '../options/options.ts'
import { askPerson } from '../terminal/ask.ts'
import { err, errBytes, out } from '../terminal/output.ts'

const OPTIONS = {
  command: { type: 'string', short: 'c' },
  output: { type: 'string', short: 'o' },
  workspace: { type: 'string', short: 'w' },
  yes: { type: 'boolean', short: 'y' },
  timeout: { type: 'string' },
} as const

const ROUNDS = 5
/** The exit codes of a program that cannot be executed or was not found. */
const NOT_STARTED = [126, 127]
const DEFAULT_SECONDS = 300

/**
 * `ringfence policy learn -- cmd`: runs the command in a sandbox with its changes held back, repeatedly, each time with
 * the permitted grants it was seen to need, until it needs nothing new.
 */
export async function learn(args: readonly string[]): Promise<number> {
  const { values, positionals } = parseOptions('policy', args, OPTIONS)
  const command = values.command ?? positionals
  if (command.length === 0) throw usage('policy', 'no command given: put it after `--`, or use -c')
  const ringfence = await compose({ config: values.config, policy: values.policy })
  try {
    const session = new Learning(ringfence, command, resolve(ringfence.cwd, values.workspace ?? '.'), values)
    const learned = await session.run()
    // A program that could not start needs nothing, so a policy made from it would be worthless.
    if (NOT_STARTED.includes(session.exitCode)) {
      err('nothing learned: the command did not start\n')
      return session.exitCode
    }
    const text = learnedPolicy(learned)
    if (values.output === undefined) out(text)
    else writeAtomically(values.output, text)
    printSummary(learned, values.output)
    return 0
  } finally {
    await ringfence.close()
  }
}

function printSummary({ reads, hosts, leftOut }: Learned, file: string | undefined): void {
  const say = (text: string): void => void err(`${text}\n`)
  say(`learned: ${reads.length} paths outside the workspace, ${hosts.length} hosts`)
  for (const { what, why } of leftOut) say(`not granted: ${visible(what)} (${visible(why)})`)
  if (file !== undefined) say(`wrote ${file}`)
}

type Choice = { readonly yes?: boolean | undefined; readonly timeout?: string | undefined }

class Learning {
  readonly #ringfence: Ringfence
  readonly #command: string | readonly string[]
  readonly #workspace: string
  readonly #choice: Choice
  readonly #reads = new Set<string>()
  readonly #hosts = new Set<string>()
  readonly #leftOut = new Map<string, string>()
  /** Of the last round. */
  exitCode = 0

  constructor(ringfence: Ringfence, command: string | readonly string[], workspace: string, choice: Choice) {
    this.#ringfence = ringfence
    this.#command = command
    this.#workspace = workspace
    this.#choice = choice
  }

  async run(): Promise<Learned> {
    let decision: Decision | undefined
    for (let round = 1; round <= ROUNDS; round++) {
      const known = this.#known()
      err(`round ${round}: ${known} grants\n`)
      const done = await this.#once()
      decision = done.decision
      this.exitCode = exitCodeOf(done.outcome, constants.signals)
      if (this.#known() === known) break
    }
    return {
      workspace: this.#workspace,
      line: typeof this.#command === 'string' ? this.#command : this.#command.join(' '),
      decision: decision as Decision,
      reads: gathered([...this.#reads]),
      hosts: [...this.#hosts].sort(),
      leftOut: [...this.#leftOut].map(([what, why]) => ({ what, why })),
    }
  }

  #known(): number {
    return this.#reads.size + this.#hosts.size
  }

  async #once(): Promise<Executed> {
    const sandbox = await this.#ringfence.gate.open(this.#spec())
    try {
      const done = await sandbox.exec(this.#command, {
        last: true,
        output: (_, chunk) => void errBytes(chunk),
        approve: (decision) => this.#choice.yes === true || askPerson(decision, false),
      })
      this.#study(done, sandbox)
      return done
    } finally {
      await sandbox.close()
      sandbox.review?.drop()
    }
  }

  #spec(): Record<string, unknown> {
    const hosts = this.#ringfence.config.network?.allow_hosts ?? []
    return {
      workspace: this.#workspace,
      review: true,
      learn: true,
      read: gathered([...this.#reads]),
      network: { mode: 'fetch', allowHosts: hosts.length > 0 ? hosts : ['*'] },
      limits: { wallMs: 1000 * Number(this.#choice.timeout ?? DEFAULT_SECONDS) },
    }
  }

  #study({ uses = [] }: Executed, { connections }: Sandbox): void {
    this.#studyPaths(uses)
    for (const { host, port } of connections) {
      const name = `${host}:${port}`
      if (isDangerousHost(host)) this.#leftOut.set(name, 'address of this machine or its private network')
      else this.#hosts.add(name)
    }
  }

  #studyPaths(uses: readonly Use[]): void {
    for (const path of usesOutside(uses, 'write', this.#workspace))
      this.#leftOut.set(path, 'written outside the workspace')
    for (const path of usesOutside(uses, 'read', this.#workspace)) {
      // Programs probe for many paths that do not exist; they need no grant.
      if (!existsSync(path) || this.#reads.has(path) || this.#leftOut.has(path)) continue
      const objection = this.#objection(path)
      if (objection === undefined) this.#reads.add(path)
      else this.#leftOut.set(path, objection)
    }
  }

  /** Why the policy rejects a grant of this path; undefined if it permits the grant. */
  #objection(path: string): string | undefined {
    try {
      this.#ringfence.gate.plan({ workspace: this.#workspace, read: [path] })
      return undefined
    } catch (error) {
      if (error instanceof SandboxError) return error.message
      throw error
    }
  }
}

const isDangerousHost = (host: string): boolean =>
  isMetadataName(host) || isInternalName(host) || parseAddress(host) !== undefined
