import type { Plan } from '../model/plan.ts'
import type { Backend, OpenOptions } from './backend.ts'

/** What is known of a backend without loading it. */
export type Face = Pick<Backend, 'name' | 'level' | 'byNameOnly' | 'emulated' | 'runsImages'>

/**
 * A backend whose code is loaded when somebody asks it something: a command that runs elsewhere does not pay for it.
 * It remembers its probe only as long as `fingerprint` stays the same.
 */
export function lazy(face: Face, fingerprint: () => string, load: () => Promise<Backend>): Backend {
  let loaded: Promise<Backend> | undefined
  const backend = (): Promise<Backend> => {
    loaded ??= load()
    return loaded
  }
  const asked = {
    fingerprint,
    probe: async () => (await backend()).probe(),
    open: async (plan: Plan, options?: OpenOptions) => (await backend()).open(plan, options),
  } satisfies Omit<Backend, keyof Face>
  // Not spread: what a face says may change while the process lives.
  return Object.defineProperties(asked, Object.getOwnPropertyDescriptors(face)) as typeof asked & Face
}
