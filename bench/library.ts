/** What the bench calls: the library, and the judgement that the library does not export by itself. */
export { Sandbox, wrap } from '../src/api.ts'
export { EgressProxy } from '../src/egress/proxy.ts'
export { judgeLine } from '../src/policy/commands/judge.ts'
export { compilePolicy } from '../src/policy/policy.ts'
