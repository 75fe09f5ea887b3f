import { boolean, type Infer, number, object, optional, record, refuse, type Shape } from '../shape.ts'
import { approvalShape } from './approvals.ts'
import { recordShape } from './audit.ts'
import { streamEndShape } from './execs.ts'
import { arrayOf, nullable, string, time } from './fields.ts'
import { waitingReviewShape } from './reviews.ts'
import { sandboxFields } from './sandboxes.ts'

/** Sessions of the console and its stream of events. */

const integer = () => number({ integer: true })

const whoFields = {
  key_id: string(),
  tenant: string(),
  scopes: arrayOf(string()),
  operator: boolean(),
  version: string(),
  allow_interactive: boolean(),
}
/** Who is signed in, and what the page may offer. */
export const whoShape = object(whoFields)
/** Who is signed in, and what the page may offer. */
export type Who = Infer<typeof whoShape>
/** A new session; `page` is the secret that the page keeps. */
export const sessionShape = object({ page: string(), ...whoFields })
/** A new session. */
export type Session = Infer<typeof sessionShape>

/** A one-time sign-in link. */
export const linkShape = object({ link: string(), path: string() })
/** A one-time sign-in link. */
export type SignInLink = Infer<typeof linkShape>

/** CPU use in percent of one CPU, and bytes of memory. */
export type Sample = readonly [cpu: number, memory: number]
const sampleShape: Shape<Sample> = {
  schema: { type: 'array', items: { type: 'number' }, minItems: 2, maxItems: 2 },
  parse(value, at) {
    const [cpu, memory, ...rest] = arrayOf(number()).parse(value, at)
    if (cpu === undefined || memory === undefined || rest.length > 0) refuse(at, 'expected two numbers')
    return [cpu, memory]
  },
}

const consoleSandboxShape = object({
  ...sandboxFields,
  running: optional(integer()),
  last_command: optional(nullable(string())),
  last_command_at: optional(nullable(time())),
  egress: optional(object({ allowed: integer(), refused: integer() })),
  samples: optional(arrayOf(sampleShape)),
})
/** A sandbox as the console lists it; an ended one has only the fields of every sandbox. */
export type ConsoleSandbox = Infer<typeof consoleSandboxShape>

/** The events of `/v1/console/events`, each with its data. */
export const consoleEvents = {
  hello: object({ sandboxes: arrayOf(consoleSandboxShape), seq: integer(), policy: string() }),
  approvals: arrayOf(approvalShape),
  reviews: arrayOf(waitingReviewShape),
  sandbox: consoleSandboxShape,
  gone: consoleSandboxShape,
  samples: record(sampleShape),
  record: recordShape,
  /** The last event, when the server ends the stream. */
  cut: streamEndShape,
}
/** One event of the console's stream. */
export type ConsoleEvent = {
  readonly [Name in keyof typeof consoleEvents]: {
    readonly type: Name
    readonly data: Infer<(typeof consoleEvents)[Name]>
  }
}[keyof typeof consoleEvents]
