import { boolean, type Infer, number, object, optional, text } from '../shape.ts'
import { arrayOf, described, nullable, pageOf, string, time } from './fields.ts'

/** Volumes: named directories of a tenant that outlive sandboxes. */

const integer = () => number({ integer: true })
const sizeMb = () => number({ integer: true, min: 1, max: 2 ** 30 })

/** A volume. */
export const volumeShape = object({
  id: string(),
  name: string(),
  size_mb: integer(),
  used_bytes: described(
    'null where counting takes too long, or another node has the files',
    nullable(integer()),
  ),
  read_only: described('a snapshot of another volume', boolean()),
  sandboxes: described('the sandboxes that have it mounted', arrayOf(string())),
  created_at: time(),
  tenant: string(),
  node: described('in a cluster: the node that has its files', nullable(string())),
})
/** A named directory that outlives sandboxes. */
export type VolumeInfo = Infer<typeof volumeShape>
/** A page of volumes. */
export const volumePage = pageOf(volumeShape)

/** The body that creates a volume. */
export const newVolumeShape = object({ name: text({ max: 128 }), size_mb: optional(sizeMb()) })
/** The body that copies a volume. */
export const copyVolumeShape = object({
  name: text({ max: 128 }),
  /** The copy is a snapshot: it can only be mounted read-only. */
  read_only: optional(boolean()),
})
