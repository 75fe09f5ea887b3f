import { boolean, type Infer, number, object, oneOf, optional, record } from '../shape.ts'
import { arrayOf, json, pageOf, string, variants } from './fields.ts'

/** Skills. */

const integer = () => number({ integer: true })

const findingShape = object({
  severity: oneOf('critical', 'warning', 'info'),
  what: string(),
  /** The file and line, where there is one. */
  where: optional(string()),
})
/** Something that an inspection found. */
export type Finding = Infer<typeof findingShape>

const inspectionShape = object({
  name: string(),
  version: optional(string()),
  description: optional(string()),
  dir: string(),
  runtime: object({ type: string(), entry: string() }),
  hash: string(),
  files: integer(),
  bytes: integer(),
  /** Capabilities by kind, as the manifest writes them. */
  asks: record(arrayOf(string())),
  env: arrayOf(string()),
  redFlags: arrayOf(findingShape),
  imports: arrayOf(string()),
  /** Variables that the code reads and the manifest does not declare. */
  undeclared: arrayOf(string()),
  findings: arrayOf(findingShape),
})

const skillShape = object({
  name: string(),
  dir: string(),
  hash: string(),
  version: optional(string()),
  runtime: optional(string()),
  state: oneOf('unchanged', 'changed', 'missing'),
  inspection: optional(inspectionShape),
})
/** An inspected skill. */
export type SkillView = Infer<typeof skillShape>
/** All inspected skills. */
export const skillPage = pageOf(skillShape)

const usageShape = object({
  skill: string(),
  runs: integer(),
  fuel: number(),
  duration_ms: number(),
  violations: integer(),
})
/** What the runs of one skill used. */
export type SkillUsage = Infer<typeof usageShape>
/** What the runs of each skill used. */
export const skillUsageList = arrayOf(usageShape)

const runFields = {
  fuel: number(),
  duration_ms: number(),
  violations: arrayOf(object({ violation_type: string(), details: string() })),
  skill: string(),
  exec_id: string(),
  hash: string(),
  truncated: boolean(),
  withheld: arrayOf(string()),
  log: arrayOf(object({ level: string(), text: string() })),
}
const errorShape = object({ code: string(), message: string(), resource: optional(string()) })

/** The result of one run: a value or an error. */
export const skillRunShape = variants(
  object({ ok: json(), ...runFields }),
  object({ error: errorShape, ...runFields }),
)
/** The result of one run. */
export type SkillRun = Infer<typeof skillRunShape>
