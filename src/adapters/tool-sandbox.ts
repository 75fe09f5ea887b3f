import type { HostVerdict } from '../client/types.ts'
import type { Outcome, Violation } from '../model/command.ts'
import type { Decision } from '../model/decision.ts'

/** The interface that tools use for a local or remote sandbox. Paths are paths inside the sandbox. */
export type ToolSandbox = {
  readonly id: string
  /** Working directory of commands and base of relative paths. */
  readonly workspace: string
  readonly describe: () => Promise<ToolSandboxDescription>
  /** Checks and records a command, then starts it; rejects if the policy denies it. */
  readonly start: (command: string | readonly string[], options: StartOptions) => Promise<RunningToolCommand>
  readonly files: ToolSandboxFiles
  readonly judge: (
    command: string | readonly string[],
    where?: Pick<StartOptions, 'cwd' | 'env'>,
  ) => Promise<Decision>
  /** Sets the allowed hosts; the result says for each host whether the policy permits it. */
  readonly setAllowHosts: (hosts: readonly string[]) => Promise<readonly HostVerdict[]>
  readonly portUrl: (port: number) => Promise<string>
  /** The latest records of this sandbox, oldest first. */
  readonly trail: (limit: number) => Promise<readonly Readonly<Record<string, unknown>>[]>
  readonly close: () => Promise<void>
}

/** What a model is told about its sandbox. */
export type ToolSandboxDescription = {
  readonly backend: string
  readonly level: string
  readonly network: { readonly mode: string; readonly allowHosts: readonly string[] }
  readonly agentId?: string
}

/** Who approved a command: the user of the client, or the option `--yes` of the server. */
export type Approver = 'client' | '--yes'

/** The size of a tool's terminal: no person looks at it. */
export const TERMINAL = { rows: 24, cols: 120 }

/** How a command is started. */
export type StartOptions = {
  readonly cwd?: string | undefined
  readonly env?: Readonly<Record<string, string>> | undefined
  /** All of standard input, or `open` to write while the command runs. */
  readonly stdin?: string | undefined
  readonly stdinOpen?: boolean | undefined
  readonly terminal?: boolean | undefined
  readonly timeoutMs?: number | undefined
  /** While a promise that it returned is pending, the command is held back. */
  readonly output: (stream: 'stdout' | 'stderr', chunk: Uint8Array) => unknown
  /** Kills the command. */
  readonly signal?: AbortSignal | undefined
  /** Who approved exactly this command; absent: nobody. */
  readonly approved?: Approver | undefined
}

/** How a command ended. */
export type CommandEnd = {
  readonly outcome: Outcome
  readonly truncated: boolean
  readonly durationMs: number
  readonly violations: readonly Violation[]
  /** What would let the command reach the network. */
  readonly hint?: string
}

/** A command that runs. */
export type RunningToolCommand = {
  readonly id: string
  readonly write: (data: string | Uint8Array) => Promise<void>
  readonly endInput: () => Promise<void>
  readonly signal: (name: string) => Promise<void>
  readonly ended: Promise<CommandEnd>
}

/** One entry of a directory. */
export type ToolSandboxEntry = {
  readonly name: string
  readonly path: string
  readonly kind: 'file' | 'dir' | 'link' | 'other'
  readonly size: number
  readonly modifiedMs: number
}

type ToolSandboxFiles = {
  readonly read: (
    path: string,
    range?: { readonly offset: number; readonly length: number },
  ) => Promise<Uint8Array>
  readonly write: (path: string, data: Uint8Array) => Promise<void>
  readonly list: (path: string, depth: number) => Promise<readonly ToolSandboxEntry[]>
  readonly stat: (path: string) => Promise<ToolSandboxEntry>
  readonly remove: (path: string) => Promise<void>
}
