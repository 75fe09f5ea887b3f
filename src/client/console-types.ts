/** The types of answers that only the console reads: those of the shapes in `model/api`. */

export type { SignedHead, TrailHead, TrailProof } from '../model/api/audit.ts'
export type {
  ConsoleEvent,
  ConsoleSandbox,
  Sample,
  Session,
  SignInLink,
  Who,
} from '../model/api/console.ts'
export type { ExecView } from '../model/api/execs.ts'
export type { BackendView, Doctor } from '../model/api/host.ts'
export type {
  Inspected,
  JudgedCommand,
  PolicyCheck,
  PolicyDescription,
  PolicyView,
  Suggestion,
  Verdict,
} from '../model/api/policy.ts'
export type { EgressView, UsageView, Wall, WallMount } from '../model/api/sandboxes.ts'
export type { Finding, SkillUsage, SkillView } from '../model/api/skills.ts'
