import type { Backend } from './backend.ts'

/** What is known of a backend without loading it. */
export type Face = Pick<Backend, 'name' | 'level' | 'byNameOnly' | 'emulated' | 'onRequest' | 'runsImages'>

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
  return {
    ...face,
    fingerprint,
    probe: async () => (await backend()).probe(),
    open: async (plan, options) => (await backend()).open(plan, options),
  }
}
