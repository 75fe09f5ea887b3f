import { metadataShape } from '../../model/api/create-sandbox.ts'
import { boolean, list, number, object, optional, record, type Shape, text } from '../../model/shape.ts'
import { networkShape } from './network.ts'

/** What E2B's clients send. A field that is `null` is one that is not there. */

const seconds = () => number({ integer: true, min: 0, max: 2 ** 31 })
const anything: Shape<unknown> = { schema: {}, parse: (value) => value }

/** A shape that treats `null` as absent. */
export const withoutNulls = <T>(shape: Shape<T>): Shape<T> => ({
  schema: shape.schema,
  parse(value, at) {
    if (typeof value !== 'object' || value === null || Array.isArray(value)) return shape.parse(value, at)
    return shape.parse(Object.fromEntries(Object.entries(value).filter(([, one]) => one !== null)), at)
  },
})

/** The body of a create. */
export const createShape = withoutNulls(
  object({
    templateID: optional(text({ max: 256 })),
    timeout: optional(seconds()),
    metadata: optional(metadataShape(/^[^\0]+$/)),
    envVars: optional(record(text({ empty: true }), /^[A-Za-z_][A-Za-z0-9_]*$/)),
    allow_internet_access: optional(boolean()),
    network: optional(withoutNulls(networkShape)),
    /** Every sandbox here has a token; asking for one without is not understood as a wish. */
    secure: optional(boolean()),
    autoPause: optional(boolean()),
    autoPauseMemory: optional(boolean()),
    autoResume: optional(withoutNulls(object({ enabled: optional(boolean()) }))),
    volumeMounts: optional(list(object({ name: text({ max: 128 }), path: text({ max: 4096 }) }), 16)),
    mcp: optional(anything),
    iam: optional(anything),
  }),
)
/** A parsed create. */
export type CreateBody = ReturnType<typeof createShape.parse>

/** The body that sets a time-out. */
export const timeoutShape = withoutNulls(object({ timeout: optional(seconds()) }))
/** The body of a connect. */
export const connectShape = withoutNulls(
  object({ timeout: optional(seconds()), memory: optional(boolean()), autoPause: optional(boolean()) }),
)
/** The body of a refresh. */
export const refreshShape = withoutNulls(object({ duration: optional(seconds()) }))
/** The body of a pause. */
export const pauseShape = withoutNulls(object({ memory: optional(boolean()) }))
/** The body of a snapshot. */
export const snapshotShape = withoutNulls(object({ name: optional(text({ max: 128 })) }))
/** The body of a fork. */
export const forkShape = withoutNulls(
  object({ count: optional(number({ integer: true, min: 1, max: 100 })), timeout: optional(seconds()) }),
)

/** The body that creates a template. */
export const newTemplateShape = withoutNulls(
  object({
    name: optional(text({ max: 128 })),
    alias: optional(text({ max: 128 })),
    tags: optional(list(text({ max: 64 }), 16)),
    cpuCount: optional(number({ integer: true, min: 1, max: 4096 })),
    memoryMB: optional(number({ integer: true, min: 1, max: 2 ** 30 })),
    minFreeDiskMb: optional(number({ integer: true, min: 0, max: 2 ** 30 })),
    teamID: optional(text({ max: 128 })),
  }),
)

const stepShape = withoutNulls(
  object({
    type: text({ max: 32 }),
    args: optional(list(text({ empty: true, max: 1_000_000 }), 256)),
    filesHash: optional(text({ max: 128 })),
    force: optional(boolean()),
    forceUpload: optional(anything),
    resolveSymlinks: optional(boolean()),
    gzip: optional(boolean()),
  }),
)
/** One step of a template build. */
export type Step = ReturnType<typeof stepShape.parse>

const registryShape = withoutNulls(
  object({
    type: text({ max: 32 }),
    username: optional(text({ max: 1024 })),
    password: optional(text({ max: 65_536 })),
    serviceAccountJson: optional(text({ max: 65_536 })),
    awsAccessKeyId: optional(text({ max: 256 })),
    awsSecretAccessKey: optional(text({ max: 256 })),
    awsRegion: optional(text({ max: 256 })),
  }),
)

/** The body that starts a build. */
export const buildShape = withoutNulls(
  object({
    fromImage: optional(text({ max: 512 })),
    fromTemplate: optional(text({ max: 256 })),
    fromImageRegistry: optional(registryShape),
    steps: optional(list(stepShape, 256)),
    startCmd: optional(text({ empty: true, max: 65_536 })),
    readyCmd: optional(text({ empty: true, max: 65_536 })),
    force: optional(boolean()),
  }),
)
/** A parsed build. */
export type BuildBody = ReturnType<typeof buildShape.parse> & {
  /** The user and the directory are those of the image, as an engine reads it; never part of E2B's requests. */
  readonly usesImageDefaults?: boolean
}
