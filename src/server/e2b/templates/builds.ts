import { randomBytes } from 'node:crypto'
import { SandboxError } from '../../../model/errors.ts'
import type { Template, Templates } from '../../../supervisor/snapshots/templates.ts'

/** Builds of templates and their logs, bounded for each tenant: nobody's builds cost another tenant theirs. */

export type LogEntry = { readonly timestamp: string; readonly level: string; readonly message: string }

/** One build with its state and log. */
export type Build = {
  readonly id: string
  readonly templateId: string
  readonly tenant: string
  readonly name: string
  /** Tags that lead to this build once it is ready. */
  readonly tags: readonly string[]
  readonly cpus: number | undefined
  readonly memoryMb: number | undefined
  readonly log: BuildLog
  readonly createdAt: number
  status: 'waiting' | 'building' | 'ready' | 'error'
  reason?: { readonly message: string; readonly step?: string }
}

/** Builds that a tenant has at once, ended ones included. */
const MOST_BUILDS = 20
/** A build that nobody starts makes room for others after this time. */
const WAITING_MS = 3_600_000
const LOG_BYTES = 1024 * 1024
const LOG_ENTRIES = 10_000
const MESSAGE_CHARACTERS = 16_384

/** What a build said. What goes beyond its room is left out, and the last entry says so. */
export class BuildLog {
  readonly entries: LogEntry[] = []
  #bytes = 0
  #full = false

  say(text: string, level = 'info'): void {
    if (this.#full) return
    const message = text.slice(0, MESSAGE_CHARACTERS)
    this.#bytes += Buffer.byteLength(message) + ENTRY_BYTES
    this.#full = this.#bytes > LOG_BYTES || this.entries.length >= LOG_ENTRIES
    const shown = this.#full
      ? { level: 'warn', message: 'the log is full; the rest is left out' }
      : { level, message }
    this.entries.push({ timestamp: new Date().toISOString(), ...shown })
  }
}
/** About what an entry costs beside its message. */
const ENTRY_BYTES = 128

/** All builds, bounded for each tenant. */
export class Builds {
  readonly #byTenant = new Map<string, Map<string, Build>>()

  /**
   * Keeps a new build; the tenant's oldest one that has ended makes room for it. SECURITY: never one that may still be started,
   * because all that run are counted here.
   */
  add(build: Build): void {
    const own = this.#byTenant.get(build.tenant) ?? new Map<string, Build>()
    for (const [id, old] of own) {
      if (own.size < MOST_BUILDS) break
      if (hasEnded(old)) own.delete(id)
    }
    if (own.size >= MOST_BUILDS)
      throw new SandboxError(
        'too-many-requests',
        `tenant \`${build.tenant}\` already has ${own.size} builds that run or wait for their start`,
        {
          hint: 'wait until one has ended; one that nobody starts makes room after an hour',
          retryAfterSecs: 10,
        },
      )
    own.set(build.id, build)
    this.#byTenant.set(build.tenant, own)
  }

  get(tenant: string, id: string): Build | undefined {
    return this.#byTenant.get(tenant)?.get(id)
  }
}

const hasEnded = ({ status, createdAt }: Build): boolean =>
  status === 'ready' || status === 'error' || (status === 'waiting' && createdAt < Date.now() - WAITING_MS)

/** A new id of a template, build or snapshot. */
export const newName = (prefix: string): string => `${prefix}${randomBytes(10).toString('hex')}`

/** The name of a template; throws for one that cannot be. */
export function checkTemplateName(name: string | undefined): string {
  if (name && /^[a-z0-9][\w.:/-]*$/i.test(name)) return name
  throw new SandboxError('invalid-input', 'a template needs a name of letters, digits, `-`, `_`, `.` and `:`')
}

/** SECURITY: files with which volumes and sandboxes move, images and layers are rows too, which clients neither see nor change. */
export const isListed = (template: Template | undefined): template is Template =>
  template?.kind === 'template' || template?.kind === 'snapshot'

/** Adds a build. One name is one template; its second build replaces the first when it is ready. */
export async function newBuild(
  templates: Templates,
  builds: Builds,
  asked: Pick<Build, 'tenant' | 'name' | 'tags' | 'cpus' | 'memoryMb'>,
): Promise<Build> {
  const before = await templates.find(asked.tenant, asked.name)
  const templateId = isListed(before) ? before.id : newName('tpl')
  const own = { id: newName('bld'), templateId, log: new BuildLog(), createdAt: Date.now() }
  const build: Build = { ...asked, ...own, status: 'waiting' }
  builds.add(build)
  return build
}
