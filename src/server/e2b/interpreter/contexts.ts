import { SandboxError } from '../../../model/errors.ts'
import type { LiveSandbox } from '../../../supervisor/lifecycle/live-sandbox.ts'
import type { OpenSandbox } from '../../../supervisor/open-sandbox.ts'
import { ConnectError } from '../errors.ts'
import { HOME, type SandboxSurface } from '../sandbox-request.ts'
import { Kernel } from './kernel.ts'
import { type Language, languageOf } from './languages.ts'

/** The contexts of the code interpreter: each has a kernel of its own, which keeps its state. */

/** One context; its kernel starts at the first execution, or before. */
export type CodeContext = {
  readonly id: string
  readonly language: Language
  readonly cwd: string
  kernel: Promise<Kernel> | undefined
  /** One execution at a time. */
  tail: Promise<unknown>
}

/** By what runs: a sandbox that was paused without its memory has no contexts. */
const CONTEXTS = new WeakMap<OpenSandbox, Map<string, CodeContext>>()
const MOST = 32
/** These exist from the start, as with E2B; those of other languages from their first use. */
const FROM_THE_START = ['python', 'javascript'] as const

const added = (
  all: Map<string, CodeContext>,
  { id, language, cwd }: { readonly id: string; readonly language: Language; readonly cwd: string },
): CodeContext => {
  const made: CodeContext = { id, language, cwd, kernel: undefined, tail: Promise.resolve() }
  all.set(id, made)
  return made
}

/** All contexts of a sandbox. */
export const contextsOf = (entry: LiveSandbox): Map<string, CodeContext> => contextsIn(entry.ready())

function contextsIn(sandbox: OpenSandbox): Map<string, CodeContext> {
  const known = CONTEXTS.get(sandbox)
  if (known) return known
  const made = new Map<string, CodeContext>()
  for (const language of FROM_THE_START) added(made, { id: `default-${language}`, language, cwd: HOME })
  CONTEXTS.set(sandbox, made)
  return made
}

/** Adds a context. */
export function newContext(entry: LiveSandbox, id: string, language: Language, cwd = HOME): CodeContext {
  const all = contextsOf(entry)
  if (all.size >= MOST)
    throw new ConnectError('resource_exhausted', `this sandbox already has ${MOST} contexts`)
  return added(all, { id, language, cwd })
}

/** The context of an id; throws if there is none. */
export function contextWith(entry: LiveSandbox, id: string): CodeContext {
  const found = contextsOf(entry).get(id)
  if (!found) throw new SandboxError('not-found', `there is no context \`${id}\``)
  return found
}

/** The context of a language that code without a context runs in. */
export function defaultContext(entry: LiveSandbox, name: string | undefined): CodeContext {
  const language = languageOf(name)
  const id = `default-${language}`
  return contextsOf(entry).get(id) ?? newContext(entry, id, language)
}

/** The running kernel of a context, which is started if there is none. */
export async function kernelOf(
  surface: SandboxSurface,
  { sandbox, tenant }: { readonly sandbox: OpenSandbox; readonly tenant: string },
  context: CodeContext,
): Promise<Kernel> {
  const known = await context.kernel?.catch(() => undefined)
  if (known && !known.isOver) return known
  const { language, cwd } = context
  context.kernel = Kernel.start({ surface, sandbox, tenant, language, cwd })
  context.kernel.catch(() => {})
  return context.kernel
}

/** Ends the kernel of a context; the next execution starts a new one. */
export function stopKernel(context: CodeContext): void {
  void context.kernel?.then(
    (kernel) => kernel.stop(),
    () => {},
  )
  context.kernel = undefined
}

/** Starts the Python kernel of a sandbox before the first code comes. A failure is reported to that code. */
export async function prewarm(surface: SandboxSurface, sandbox: OpenSandbox, tenant: string): Promise<void> {
  const context = contextsIn(sandbox).get('default-python')
  if (!context || context.kernel) return
  const kernel = await kernelOf(surface, { sandbox, tenant }, context).catch(() => undefined)
  await kernel?.ready
}
