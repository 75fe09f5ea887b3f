/** The library: what an agent builder imports. */
export {
  createSandboxConfigForMode,
  ExecPolicy,
  Sandbox,
  SandboxBuilder,
  type SandboxOptions,
  SkillRunner,
  wrap,
} from './api.ts'
export { AuditTrail, openTrail } from './audit/trail.ts'
export type { Backend, BackendSandbox, ExecIo, Probe, Wrapped } from './backends/backend.ts'
export { type MockAnswer, mock } from './backends/mock/backend.ts'
export { SandboxRegistry } from './backends/registry.ts'
export { seatbelt } from './backends/seatbelt/backend.ts'
export { profileOf as seatbeltProfileOf, type SeatbeltContext } from './backends/seatbelt/launch.ts'
export {
  E2BSandbox,
  type E2BSandboxOptions,
  getE2BSandbox,
  resetE2BSandbox,
  type ScriptLanguage,
} from './compat/e2b-sandbox.ts'
export {
  DANGEROUS_PATTERNS,
  detectCapabilities,
  dispose,
  executeStreaming,
  getAutoSandboxRouter,
  getExecPolicy,
  initializeExecPolicy,
  isDangerousCommand,
  parseBashCommand,
  prune,
  resetExecPolicy,
  resetSandboxRegistry,
  sandboxExecute,
  sanitizeEnvVars,
} from './compat/legacy-api.ts'
export { type ComposeOptions, compose, type Ringfence } from './compose/compose.ts'
export type { Connection } from './egress/connection.ts'
export {
  assertPublicUrl,
  type PublicUrl,
  type SafeFetchOptions,
  type SafeResponse,
  safeFetch,
  type UrlOptions,
} from './egress/fetch/safe-fetch.ts'
export { EgressProxy, type EgressProxyOptions } from './egress/proxy.ts'
export { type BrokeredSecret, brokerSecret } from './egress/secrets/broker.ts'
export {
  type EvalOptions,
  EvalThrew,
  loadEngine,
  safeEval,
  safeEvalAsync,
  safeEvalCondition,
  safeInterpolate,
} from './eval/safe-eval.ts'
export { Secret } from './host/secrets/secret.ts'
export type { LibraryCommand, LibraryResult, OutputChunk } from './library-sandbox.ts'
export type { SkillUsage } from './model/api/skills.ts'
export type { Command, ExecResult, Outcome, StopLimit, Violation } from './model/command.ts'
export { ACTIONS, type Action, type Decision } from './model/decision.ts'
export { ERRORS, type ErrorCode, SandboxError } from './model/errors.ts'
export { GUARANTEES, type Guarantee, LEVELS, type Level } from './model/guarantee.ts'
export type { Plan } from './model/plan.ts'
export {
  type Limits,
  NETWORK_MODES,
  type NetworkMode,
  PRESETS,
  type Preset,
  parseSpec,
  type Spec,
} from './model/spec.ts'
export { parseSecretGrant, type SecretGrant } from './policy/grants/secret-grant.ts'
export {
  certificateBundle,
  certificateEnvironment,
  type ProxyEnvironmentOptions,
  proxyEnvironment,
} from './policy/network/proxy-environment.ts'
export { AutoSandboxRouter } from './policy/router.ts'
export type { ListedSkill, SkillResult, SkillRunOptions } from './skills/contract.ts'
export type { Inspection } from './skills/inspect.ts'
export { type WasmResult, WasmSandbox, type WasmSandboxOptions } from './wasm/sandbox.ts'
