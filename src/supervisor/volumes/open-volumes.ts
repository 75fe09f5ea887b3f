import { SandboxError } from '../../model/errors.ts'
import type { Spec } from '../../model/spec.ts'
import type { OpenSandboxOptions } from '../gate.ts'
import type { Sandbox } from '../sandbox.ts'
import type { Volumes } from './volumes.ts'

type Opening = Pick<
  OpenSandboxOptions,
  'id' | 'signal' | 'owner' | 'requester' | 'volumes' | 'generation' | 'takesOver'
> & {
  readonly isSuspended?: boolean
  readonly disk?: string | undefined
  readonly lower?: readonly string[] | undefined
}
/** Opens the sandbox of a spec. */
export type Open = (spec: Spec, options: Opening) => Promise<Sandbox>

/** Opens sandboxes whose specs may name volumes of their tenant. */
export const openWithVolumes =
  (volumes: Volumes, open: Open, newId: (prefix: string) => string): Open =>
  async (spec, { id = newId('sb'), ...options }) => {
    if (!spec.volumes?.length) return open(spec, { id, ...options })
    // SECURITY: a volume belongs to a tenant; without a tenant there is no volume.
    if (options.owner === undefined)
      throw new SandboxError('not-found', `no such volume \`${spec.volumes[0]?.name}\``)
    return open(spec, { id, ...options, volumes: await volumes.resolve(options.owner, id, spec) })
  }
