import { ACTIONS } from '../decision.ts'
import { boolean, type Infer, number, object, oneOf, optional } from '../shape.ts'
import { decisionShape, judgementFields } from './execs.ts'
import { arrayOf, literal, nullable, pageOf, string, variants } from './fields.ts'

/** The policy: its description, its verdicts, and changes to it. */

const integer = () => number({ integer: true })
const ceiling = () => nullable(number())

const ruleShape = object({
  id: string(),
  action: oneOf(...ACTIONS),
  matches: string(),
  why: string(),
  dirs: arrayOf(string()),
  examples: integer(),
})
/** One rule of the operator. */
export type RuleDescription = Infer<typeof ruleShape>

const themeShape = object({
  theme: string(),
  rules: integer(),
  /** Rules that no rule of the operator relaxes. */
  hard: integer(),
  actions: object({
    deny: optional(integer()),
    ask: optional(integer()),
    sandbox: optional(integer()),
    allow: optional(integer()),
  }),
  what: arrayOf(string()),
})
/** A group of built-in rules. */
export type ThemeDescription = Infer<typeof themeShape>

const descriptionShape = object({
  default_action: oneOf(...ACTIONS),
  /** `null`: the caller that creates a sandbox chooses. */
  allowed_host_prefixes: nullable(arrayOf(string())),
  blocked_host_patterns: arrayOf(string()),
  /** `null`: no ceiling. */
  limits: object({
    max_cpus: ceiling(),
    max_memory_mb: ceiling(),
    max_disk_mb: ceiling(),
    max_pids: ceiling(),
  }),
  network: object({
    modes: arrayOf(string()),
    allow_hosts: nullable(arrayOf(string())),
    allow_private: arrayOf(string()),
  }),
  allow_interactive: boolean(),
  /** `null`: every program. */
  programs: nullable(arrayOf(string())),
  always_sandbox: arrayOf(string()),
  never_sandbox: arrayOf(string()),
  rules: arrayOf(ruleShape),
  built_in: arrayOf(themeShape),
})
/** The effective policy as data: also `ringfence policy explain --json`. */
export type PolicyDescription = Infer<typeof descriptionShape>

/** The policy in force; the file and its text only for the operator. */
export const policyViewShape = object({
  policy: string(),
  description: descriptionShape,
  file: optional(string()),
  exists: optional(boolean()),
  text: optional(string()),
  /** Identifies the text; saving a new one takes it. */
  base: optional(string()),
})
/** The policy in force. */
export type PolicyView = Infer<typeof policyViewShape>

/** The hash of the policy in force. */
export const policyHashShape = object({ policy: string() })
/** The hash of the policy in force. */
export type PolicyHash = Infer<typeof policyHashShape>

const exampleShape = object({
  rule: string(),
  list: oneOf('match', 'not_match'),
  line: string(),
  holds: boolean(),
})
const checkedFields = { rules: integer(), examples: arrayOf(exampleShape), description: descriptionShape }
const checkedShape = object(checkedFields)
/** A policy text that loads. */
export type CheckedPolicy = Infer<typeof checkedShape>

/** The result of a check of a policy text. */
export const policyCheckShape = variants(
  object({ ok: literal(true), ...checkedFields }),
  object({ ok: literal(false), problem: string(), hint: optional(string()) }),
)
/** The result of a check of a policy text. */
export type PolicyCheck = Infer<typeof policyCheckShape>

const judgedShape = object({
  ...judgementFields,
  depth: integer(),
  hard: boolean(),
  rules: arrayOf(string()),
  matched: arrayOf(string()),
})
/** One command of a line, with the rules that matched it. */
export type JudgedCommand = Infer<typeof judgedShape>

const inspectedShape = object({ decision: decisionShape, nodes: arrayOf(judgedShape) })
/** A decision with every command behind it. */
export type Inspected = Infer<typeof inspectedShape>

const verdictShape = object({
  verdict: oneOf('allow', 'deny', 'block'),
  reason: string(),
  addresses: optional(arrayOf(string())),
})
/** The verdict on a path or a URL. */
export type Verdict = Infer<typeof verdictShape>

/** The result of a trial: of a command, or of a path or URL. */
export const trialShape = variants(inspectedShape, verdictShape)

const suggestionShape = object({
  kind: oneOf('rule', 'host'),
  title: string(),
  why: string(),
  /** The lines to add to the policy. */
  toml: string(),
  /** The records behind it, by `seq`. */
  seqs: arrayOf(integer()),
})
/** A change to the policy that the audit log suggests. */
export type Suggestion = Infer<typeof suggestionShape>
/** Suggested changes to the policy. */
export const suggestionPage = pageOf(suggestionShape)
