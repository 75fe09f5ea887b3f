import { SandboxError } from '../../model/errors.ts'
import { guestPath, viewImage } from '../operations/files.ts'
import { failure } from '../operations/operation.ts'
import type { AgentSession } from '../session.ts'
import { execCommand, type PatchOperation, type PatchResult, patchFile, writeStdin } from './openai.ts'

/** A sandbox provider for the OpenAI Agents SDK: each SDK session is one of our sessions. */

/** What we use of the SDK's `Manifest`. */
type ManifestLike = { readonly root: string; readonly entries: Readonly<Record<string, Entry>> }
type ManifestInput = { readonly root?: string; readonly entries?: Readonly<Record<string, Entry>> }
/** The SDK's class `Manifest`. The caller passes it, so that we depend on no version of the SDK. */
type ManifestClass<M> = new (init?: { root?: string }) => M
type Entry = {
  readonly type?: string
  readonly content?: string | Uint8Array
  readonly children?: Readonly<Record<string, Entry>>
}
type State<M> = {
  manifest: M
  workspaceReady: boolean
  environment: Record<string, string>
  [key: string]: unknown
}
type Exec = {
  readonly cmd: string
  readonly workdir?: string
  readonly tty?: boolean
  readonly yieldTimeMs?: number
  readonly maxOutputTokens?: number
  readonly runAs?: string
}

/** Creates sandbox sessions for the OpenAI Agents SDK: `new OpenAiSandboxClient(open, Manifest)`. */
export class OpenAiSandboxClient<M extends object = ManifestLike> {
  readonly backendId = 'ringfence'
  /** Not supported: a serialized state cannot prove that a sandbox belongs to the caller. */
  readonly serializedSessionStateRequiresFreshCreation = true
  readonly #open: () => AgentSession
  readonly #Manifest: ManifestClass<M> | undefined

  constructor(open: () => AgentSession, Manifest?: ManifestClass<M>) {
    this.#open = open
    this.#Manifest = Manifest
  }

  /** Takes the SDK's arguments, or a manifest alone. */
  async create(args: { readonly manifest?: object } | M = {}): Promise<OpenAiSandboxSession<M>> {
    const given = 'entries' in args ? args : ((args as { readonly manifest?: object }).manifest ?? {})
    const session = this.#open()
    try {
      const { workspace } = await session.sandbox()
      const made = new OpenAiSandboxSession(session, {
        manifest: this.#manifestAt(workspace, given),
        workspaceReady: true,
        environment: {},
      })
      await made.applyManifest(given)
      return made
    } catch (error) {
      await session.close()
      throw error
    }
  }

  /** The SDK tells the model the manifest's root, and our commands start there. */
  #manifestAt(root: string, given: object): M {
    if (this.#Manifest) return new this.#Manifest({ ...given, root })
    if (!('mountTargets' in given))
      throw new SandboxError('invalid-input', 'the SDK needs a `Manifest`', {
        hint: "pass the class: `import { Manifest } from '@openai/agents/sandbox'`, then `new OpenAiSandboxClient(open, Manifest)`",
      })
    return Object.assign(given, { root }) as unknown as M
  }
}

/** One sandbox as the OpenAI Agents SDK uses it. */
export class OpenAiSandboxSession<M extends object = ManifestLike> {
  readonly state: State<M>
  readonly #session: AgentSession

  constructor(session: AgentSession, state: State<M>) {
    this.#session = session
    this.state = state
  }

  async execCommand({ cmd, workdir, tty, yieldTimeMs, maxOutputTokens, runAs }: Exec): Promise<string> {
    try {
      refuseUser(runAs)
      const asked = { cmd, workdir, tty, yield_time_ms: yieldTimeMs, max_output_tokens: maxOutputTokens }
      return (await execCommand(this.#session, defined(asked))).text
    } catch (error) {
      return failure(error).text
    }
  }

  async writeStdin({
    sessionId,
    chars,
    yieldTimeMs,
  }: {
    readonly sessionId: number
    readonly chars?: string
    readonly yieldTimeMs?: number
  }): Promise<string> {
    try {
      return (
        await writeStdin(this.#session, defined({ session_id: sessionId, chars, yield_time_ms: yieldTimeMs }))
      ).text
    } catch (error) {
      return failure(error).text
    }
  }

  createEditor(): Record<
    'createFile' | 'updateFile' | 'deleteFile',
    (operation: PatchOperation) => Promise<PatchResult>
  > {
    const run = (operation: PatchOperation): Promise<PatchResult> => patchFile(this.#session, operation)
    return { createFile: run, updateFile: run, deleteFile: run }
  }

  async viewImage({
    path,
  }: {
    readonly path: string
  }): Promise<{ type: 'image'; image: { data: string; mediaType: string } }> {
    const { image } = await viewImage(this.#session, path)
    if (!image) throw new SandboxError('invalid-input', `\`${path}\` is not an image`)
    return { type: 'image', image: { data: image.base64, mediaType: image.mime } }
  }

  async readFile({
    path,
    maxBytes,
  }: {
    readonly path: string
    readonly maxBytes?: number
  }): Promise<Uint8Array> {
    const sandbox = await this.#session.sandbox()
    const bytes = await sandbox.files.read(guestPath(sandbox, path))
    return maxBytes === undefined ? bytes : bytes.subarray(0, maxBytes)
  }

  async listDir({
    path,
  }: {
    readonly path: string
  }): Promise<{ name: string; path: string; type: 'file' | 'dir' | 'other' }[]> {
    const sandbox = await this.#session.sandbox()
    const entries = await sandbox.files.list(guestPath(sandbox, path), 1)
    return entries.map(({ name, path: at, kind }) => ({
      name,
      path: at,
      type: kind === 'link' ? 'other' : kind,
    }))
  }

  async pathExists(path: string): Promise<boolean> {
    const sandbox = await this.#session.sandbox()
    return sandbox.files.stat(guestPath(sandbox, path)).then(
      () => true,
      () => false,
    )
  }

  /** Creates files and directories with content from the manifest; entries to fetch or mount are rejected. */
  async materializeEntry({ path, entry }: { readonly path: string; readonly entry: Entry }): Promise<void> {
    const sandbox = await this.#session.sandbox()
    if (entry.type === 'dir') {
      await this.#session.run(['mkdir', '-p', guestPath(sandbox, path)], {}, {})
      for (const [name, child] of Object.entries(entry.children ?? {}))
        await this.materializeEntry({ path: `${path}/${name}`, entry: child })
    } else if (entry.type === 'file' && entry.content !== undefined) {
      await sandbox.files.write(guestPath(sandbox, path), Buffer.from(entry.content))
    } else {
      throw new SandboxError(
        'unsupported',
        `a manifest entry of type \`${entry.type ?? 'unknown'}\` is not supported`,
        {
          hint: 'use entries with inline content, or write the files to the workspace first',
        },
      )
    }
  }

  async applyManifest(manifest: object): Promise<void> {
    const { entries = {} } = manifest as ManifestInput
    for (const [path, entry] of Object.entries(entries)) await this.materializeEntry({ path, entry })
  }

  async resolveExposedPort(port: number): Promise<{ host: string; port: number; tls: boolean; url: string }> {
    const url = new URL(await (await this.#session.sandbox()).portUrl(port))
    const tls = url.protocol === 'https:'
    return { host: url.hostname, port: Number(url.port) || (tls ? 443 : 80), tls, url: url.href }
  }

  supportsPty(): boolean {
    return true
  }

  running(): Promise<boolean> {
    return this.#session.sandbox().then(
      () => true,
      () => false,
    )
  }

  close(): Promise<void> {
    return this.#session.close()
  }
}

/** SECURITY: a sandbox has one user; other users are rejected rather than ignored. */
function refuseUser(runAs: string | undefined): void {
  if (runAs !== undefined)
    throw new SandboxError('unsupported', "commands run as the sandbox's own user only")
}

const defined = (fields: Readonly<Record<string, unknown>>): Record<string, unknown> =>
  Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined))
