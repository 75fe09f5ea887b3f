import { SandboxError } from '../../model/errors.ts'
import { guestPath } from '../operations/files.ts'
import { failure } from '../operations/operation.ts'
import { exitCode } from '../results.ts'
import type { AgentSession } from '../session.ts'

type FileError = 'file_not_found' | 'permission_denied' | 'is_directory' | 'invalid_path'

/** The members that a subclass of deepagents' `BaseSandbox` must implement. */
export type DeepagentsParts = {
  readonly id: string
  /** Whether commands can run. */
  readonly isRunning: boolean
  /** Destroys the sandbox. */
  close(): Promise<void>
  execute(command: string): Promise<{ output: string; exitCode: number | null; truncated: boolean }>
  uploadFiles(files: [string, Uint8Array][]): Promise<{ path: string; error: FileError | null }[]>
  downloadFiles(
    paths: string[],
  ): Promise<{ path: string; content: Uint8Array | null; error: FileError | null }[]>
}

/** Files to write before the first command, by path: text or bytes. */
export type InitialFiles = Readonly<Record<string, string | Uint8Array>>

/** A LangChain deepagents backend. The caller passes `BaseSandbox`, so that we depend on no version of it. */
export function deepagentsSandbox<B extends object>(
  Base: abstract new () => B,
  session: AgentSession,
  { initialFiles = {} }: { readonly initialFiles?: InitialFiles } = {},
): B & DeepagentsParts {
  // Typed without abstract members, because the members below implement all of them.
  const Open = Base as unknown as new () => object
  class RingfenceSandbox extends Open implements DeepagentsParts {
    readonly id = 'ringfence'
    isRunning = true
    #prepared: Promise<void> | undefined

    /** Writes the initial files once, before anything else; a file that cannot be written fails every call. */
    #prepare(): Promise<void> {
      this.#prepared ??= writeInitial(session, initialFiles)
      return this.#prepared
    }

    async close(): Promise<void> {
      this.isRunning = false
      await session.close()
    }

    async execute(command: string): ReturnType<DeepagentsParts['execute']> {
      try {
        await this.#prepare()
        const { stdout, stderr, outcome, truncated } = await session.run(command, {}, {})
        return { output: stdout + stderr, exitCode: exitCode(outcome), truncated }
      } catch (error) {
        return { output: failure(error).text, exitCode: 126, truncated: false }
      }
    }

    async uploadFiles(files: [string, Uint8Array][]): ReturnType<DeepagentsParts['uploadFiles']> {
      await this.#prepare()
      return Promise.all(
        files.map(async ([path, data]) => ({ path, error: await write(session, path, data) })),
      )
    }

    async downloadFiles(paths: string[]): ReturnType<DeepagentsParts['downloadFiles']> {
      await this.#prepare()
      return Promise.all(paths.map(async (path) => ({ path, ...(await read(session, path)) })))
    }
  }
  return new RingfenceSandbox() as unknown as B & DeepagentsParts
}

async function writeInitial(session: AgentSession, files: InitialFiles): Promise<void> {
  const sandbox = await session.sandbox()
  for (const [path, data] of Object.entries(files))
    await sandbox.files.write(guestPath(sandbox, path), Buffer.from(data))
}

async function write(session: AgentSession, path: string, data: Uint8Array): Promise<FileError | null> {
  try {
    const sandbox = await session.sandbox()
    await sandbox.files.write(guestPath(sandbox, path), data)
    return null
  } catch (error) {
    return reasonOf(error)
  }
}

async function read(
  session: AgentSession,
  path: string,
): Promise<{ content: Uint8Array | null; error: FileError | null }> {
  try {
    const sandbox = await session.sandbox()
    return { content: await sandbox.files.read(guestPath(sandbox, path)), error: null }
  } catch (error) {
    return { content: null, error: reasonOf(error) }
  }
}

function reasonOf(error: unknown): FileError {
  const code = error instanceof SandboxError ? error.code : 'internal'
  if (code === 'file-not-found') return 'file_not_found'
  return code === 'invalid-input' ? 'is_directory' : 'permission_denied'
}
