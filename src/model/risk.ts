import type { Guarantee } from './guarantee.ts'

/**
 * Everything that a question or a denial of the built-in rules can be about. A rule names its risks; a plan's
 * guarantees contain some of them (policy/containment.ts). A rule with an unknown risk does not compile.
 */
export const RISKS = {
  network: 'reaching the network',
  loopback: 'reaching services of the host on loopback or a socket',
  'outside-write': 'changing files outside the workspace',
  'machine-read': 'reading credentials or files of the machine',
  'workspace-credentials': 'reading credentials that lie in the workspace',
  processes: 'signalling or inspecting processes of the host',
  persistence: 'running again later on the host',
  privileges: 'raising privileges',
  'workspace-loss': 'destroying work in the workspace',
  publish: 'publishing, or acting through an account',
  'downloaded-code': 'running a program that comes from the network at that moment',
  'granted-secret': 'using a granted secret',
  resources: 'exhausting a resource',
} as const

/** The name of a risk. */
export type Risk = keyof typeof RISKS

/** The names of all risks. */
export const RISK_NAMES = Object.keys(RISKS) as readonly Risk[]

/** The guarantee that contains each risk behind a plan; a risk that is not contained is absent. */
export type Containment = Readonly<Partial<Record<Risk, Guarantee>>>
