import { SandboxError } from '../model/errors.ts'
import type { Plan } from '../model/plan.ts'
import type { Backend, OpenOptions, Probe } from './backend.ts'

/** The properties of a backend that are known without loading it. */
export type BackendSummary = Pick<
  Backend,
  | 'name'
  | 'level'
  | 'byNameOnly'
  | 'emulated'
  | 'onRequest'
  | 'runsImages'
  | 'reviews'
  | 'mountsVolumes'
  | 'writableRoots'
>

/**
 * A backend whose code is loaded at first use, so that a command on another backend does not pay for it.
 * Its probe result is cached only while `fingerprint` stays the same.
 */
export function lazy(face: BackendSummary, fingerprint: () => string, load: () => Promise<Backend>): Backend {
  let loaded: Promise<Backend> | undefined
  const backend = async (): Promise<Backend> => {
    loaded ??= load()
    try {
      return await loaded
    } catch (cause) {
      // For example without free file descriptors. It may work next time.
      loaded = undefined
      throw new SandboxError('backend-unavailable', `the backend \`${face.name}\` cannot be loaded`, {
        cause,
      })
    }
  }
  const asked = {
    fingerprint,
    probe: async (): Promise<Probe> => {
      try {
        return await (await backend()).probe()
      } catch (error) {
        return { available: false, reason: (error as Error).message, fix: 'try again later' }
      }
    },
    notes: async () => (await (await backend()).notes?.()) ?? [],
    reap: async () => (await backend()).reap?.(),
    open: async (plan: Plan, options?: OpenOptions) => (await backend()).open(plan, options),
  } satisfies Omit<Backend, keyof BackendSummary>
  // Not spread: a property of the summary may be a getter whose value changes.
  return Object.defineProperties(asked, Object.getOwnPropertyDescriptors(face)) as typeof asked &
    BackendSummary
}
