/** What the bench calls: the library, and the parts that the library does not export by themselves. */
export { Sandbox, wrap } from '../src/api.ts'
export { EgressProxy } from '../src/egress/proxy.ts'
export { safeEval } from '../src/eval/safe-eval.ts'
export { judgeLine } from '../src/policy/commands/judge.ts'
export { compilePolicy } from '../src/policy/policy.ts'
export { METER_EXPORTS, meterModule, meterWord } from '../src/wasm/meter.ts'
export { WasmRunner } from '../src/wasm/runner.ts'
export { WasmSandbox } from '../src/wasm/sandbox.ts'
