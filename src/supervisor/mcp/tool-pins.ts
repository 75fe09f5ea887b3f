import { createHash } from 'node:crypto'
import { mkdirSync, readFileSync } from 'node:fs'
import { dirname } from 'node:path'
import { canonical } from '../../audit/canonical.ts'
import { writeAtomically } from '../../host/files/atomic-file.ts'
import { SandboxError } from '../../model/errors.ts'
import type { Json } from '../../model/event.ts'
import type { ToolDescription } from '../../policy/mcp/tool-description.ts'

/** What was approved of one tool. */
type Pin = { readonly hash: string; readonly description: string }
type Pins = Readonly<Record<string, Readonly<Record<string, Pin>>>>

/** A tool whose description nobody has approved, or which differs from the approved one. */
export type UnapprovedTool = { readonly tool: ToolDescription; readonly before: string | undefined }

/**
 * The tool descriptions that a person approved. SECURITY: a description is text for a model, so it can instruct the model;
 * a server can also change it after it was approved. Only the approved one reaches a client.
 */
export class ToolPins {
  readonly #file: string

  constructor(file: string) {
    this.#file = file
  }

  isApproved(server: string, tool: ToolDescription): boolean {
    return this.#pinOf(this.#read(), server, tool.name)?.hash === hashOf(tool)
  }

  unapproved(server: string, tools: readonly ToolDescription[]): readonly UnapprovedTool[] {
    const pins = this.#read()
    return tools
      .filter((tool) => this.#pinOf(pins, server, tool.name)?.hash !== hashOf(tool))
      .map((tool) => ({ tool, before: this.#pinOf(pins, server, tool.name)?.description }))
  }

  /** Approves these descriptions; an earlier description of the same tool is no longer approved. */
  approve(server: string, tools: readonly ToolDescription[]): void {
    const pins = this.#read()
    const added = tools.map(
      (tool) => [tool.name, { hash: hashOf(tool), description: tool.description }] as const,
    )
    const next = { ...pins, [server]: { ...pins[server], ...Object.fromEntries(added) } }
    mkdirSync(dirname(this.#file), { recursive: true, mode: 0o700 })
    writeAtomically(this.#file, `${JSON.stringify(next)}\n`)
  }

  #pinOf(pins: Pins, server: string, tool: string): Pin | undefined {
    const own = Object.hasOwn(pins, server) ? pins[server] : undefined
    return own && Object.hasOwn(own, tool) ? own[tool] : undefined
  }

  /** Read each time, because `ringfence mcp approve` is another process. */
  #read(): Pins {
    let text: string
    try {
      text = readFileSync(this.#file, 'utf8')
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') return {}
      throw error
    }
    try {
      return JSON.parse(text) as Pins
    } catch (cause) {
      throw new SandboxError('invalid-config', `\`${this.#file}\` is not JSON`, {
        cause,
        hint: 'remove the file and approve the tools again',
      })
    }
  }
}

/** The hash of everything that a client is told about a tool. */
const hashOf = (tool: ToolDescription): string =>
  createHash('sha256')
    .update(canonical(tool as unknown as Json))
    .digest('hex')
