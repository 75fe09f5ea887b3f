import { createReadStream } from 'node:fs'
import { type Sandbox as Opened, Sandbox } from '../api.ts'
import type { FileInfo } from '../backends/backend.ts'
import type { ComposeOptions } from '../compose/compose.ts'
import { type LongTimeout, longTimeout } from '../host/clock.ts'
import type { LibraryResult } from '../library-sandbox.ts'
import { SandboxError } from '../model/errors.ts'

/** Options of an `E2BSandbox`. */
export type E2BSandboxOptions = {
  /** Default: `base`. */
  readonly template?: string
  /** Gives the sandbox network access; default: none. */
  readonly internet?: boolean
  /** Timeout of each command. */
  readonly timeoutMs?: number
  /** An idle sandbox is destroyed after this time. */
  readonly idleTimeoutMs?: number
  readonly compose?: ComposeOptions
}

/** Languages of `runScript`. */
export type ScriptLanguage = 'python' | 'typescript' | 'javascript' | 'shell'

const HOME = '/home/user'
const COMMAND_MS = 120_000
const IDLE_MS = 300_000

/** Package names that cannot be an option, a path, a URL or a second command. */
const NPM_NAME = /^(@[a-z0-9][a-z0-9._-]*\/)?[a-z0-9][a-z0-9._-]*(@[A-Za-z0-9.^~*-]+)?$/
const PYTHON_NAME = /^[A-Za-z0-9][A-Za-z0-9._-]*(\[[A-Za-z0-9,_-]+\])?((==|>=|<=|~=|!=)[A-Za-z0-9.*+!-]+)?$/

/** The code is passed as an argument, so that the policy checks it too. */
const RUNNERS: Readonly<Record<ScriptLanguage, readonly [string, ...string[]]>> = {
  python: ['python3', '-c'],
  javascript: ['node', '-e'],
  typescript: ['node', '--experimental-strip-types', '--input-type=module-typescript', '-e'],
  shell: ['bash', '-c'],
}

/**
 * A remote E2B sandbox with the class interface of older programs. Every command goes through the gate: the policy checks it and
 * the audit log records it. The key in `E2B_API_KEY` never leaves this host.
 */
export class E2BSandbox {
  readonly #options: E2BSandboxOptions
  #open: Promise<Opened> | undefined
  #idle: LongTimeout | undefined

  constructor(options: E2BSandboxOptions = {}) {
    this.#options = options
  }

  /** Returns the sandbox; creates it on first use and again after it has ended. */
  ensureSandbox(): Promise<Opened> {
    this.#idle?.clear()
    const idleMs = this.#options.idleTimeoutMs ?? IDLE_MS
    this.#idle = longTimeout(() => void this.destroy().catch(() => {}), idleMs).unref()
    this.#open ??= this.#create()
    return this.#open
  }

  async #create(): Promise<Opened> {
    const { template, internet, compose } = this.#options
    const forget = (): void => {
      this.#open = undefined
    }
    try {
      const sandbox = await Sandbox.create(
        {
          backend: 'e2b',
          network: { mode: internet ? 'full' : 'offline' },
          // The seccomp filter of a remote kernel cannot be verified from here, and its kernel is not ours.
          waive: ['kernel.filtered'],
          ...(template === undefined ? {} : { image: template }),
        },
        compose,
      )
      void sandbox.ended.then(forget)
      return sandbox
    } catch (error) {
      forget()
      throw error
    }
  }

  /** Runs a shell line, or a program with its arguments. */
  async execute(
    command: string | readonly [string, ...string[]],
    options: {
      readonly cwd?: string
      readonly env?: Readonly<Record<string, string>>
      readonly timeoutMs?: number
    } = {},
  ): Promise<LibraryResult> {
    const sandbox = await this.ensureSandbox()
    const { cwd = HOME, env, timeoutMs = this.#options.timeoutMs ?? COMMAND_MS } = options
    return sandbox.exec(command, { cwd, limits: { wallMs: timeoutMs }, ...(env && { env }) })
  }

  async writeFile(path: string, data: string | Uint8Array): Promise<void> {
    await (await this.ensureSandbox()).files.write(path, data)
  }

  async readFile(path: string): Promise<Uint8Array> {
    return (await this.ensureSandbox()).files.read(path)
  }

  async listFiles(path = HOME): Promise<readonly FileInfo[]> {
    return (await this.ensureSandbox()).files.entries(path)
  }

  async uploadFile(local: string, path: string): Promise<void> {
    await (await this.ensureSandbox()).files.write(path, createReadStream(local))
  }

  /** SECURITY: each name is validated and passed as an argument, not through a shell. */
  async installPackages(names: readonly string[], language: 'node' | 'python'): Promise<LibraryResult> {
    const pattern = language === 'node' ? NPM_NAME : PYTHON_NAME
    const wrong = names.find((name) => !pattern.test(name))
    if (names.length === 0 || wrong !== undefined)
      throw new SandboxError('invalid-input', `\`${wrong ?? ''}\` is not a valid package name`)
    if (!this.#options.internet)
      throw new SandboxError(
        'invalid-network-mode',
        'installing packages needs network access, and this sandbox has none',
        {
          hint: 'create it with { internet: true }',
        },
      )
    return this.execute(
      language === 'node' ? ['npm', 'install', '--', ...names] : ['pip', 'install', '--user', '--', ...names],
    )
  }

  runScript(code: string, language: ScriptLanguage): Promise<LibraryResult> {
    return this.execute([...RUNNERS[language], code])
  }

  /** Destroys the sandbox in any state. */
  async destroy(): Promise<void> {
    this.#idle?.clear()
    const open = this.#open
    this.#open = undefined
    await (await open?.catch(() => undefined))?.close()
  }
}

let shared: E2BSandbox | undefined

/** The instance that callers of the compatibility functions share. */
export function getE2BSandbox(options: E2BSandboxOptions = {}): E2BSandbox {
  shared ??= new E2BSandbox(options)
  return shared
}

/** Closes the shared sandbox. */
export async function resetE2BSandbox(): Promise<void> {
  const old = shared
  shared = undefined
  await old?.destroy()
}
