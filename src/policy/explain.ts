import type { Decision } from '../model/decision.ts'
import { RISK_NAMES, type Risk } from '../model/risk.ts'
import { builtInRisks } from './rules/risks.ts'

/** Explains a refusal to a person or a model: what was found, why it matters, and what would pass instead. */

/** Why a risk matters, and what to do instead. */
type Advice = { readonly matters: string; readonly instead: string }

const ADVICE: Readonly<Record<Risk, Advice>> = {
  publish: {
    matters: 'others would see the result, and it cannot be undone from here',
    instead: 'prepare it locally (commit, build, pack) and let the user publish it',
  },
  'downloaded-code': {
    matters: 'nobody could see what the program does before it runs',
    instead: 'download it to a file, look at it, then run that file',
  },
  'granted-secret': {
    matters: 'it would use a credential that was granted for another purpose',
    instead: 'ask the user which request the credential is for',
  },
  privileges: {
    matters: 'it would act on the whole machine',
    instead: 'run it without raised privileges, inside the workspace',
  },
  persistence: {
    matters: 'it would leave something that runs again later, outside any check',
    instead: 'run it once now instead of installing it',
  },
  'workspace-credentials': {
    matters: 'it would show a credential of this project',
    instead: 'run the program that needs the credential; do not print it',
  },
  'machine-read': {
    matters: 'it could show credentials or private files of this machine',
    instead: 'read files inside the workspace, by name',
  },
  'outside-write': {
    matters: 'it would change files that do not belong to this project',
    instead: 'write inside the workspace',
  },
  'workspace-loss': {
    matters: 'work that is not committed would be lost',
    instead: 'commit or copy the work first, and delete files by name',
  },
  processes: {
    matters: 'it could stop or read programs that belong to the user',
    instead: 'act only on processes that this command started',
  },
  loopback: {
    matters: 'it could use services of this machine, which trust local programs',
    instead: 'start the service in the same command',
  },
  network: {
    matters: 'it could send data of this machine to others',
    instead: 'use what is on this machine, or `ringfence run --allow-host HOST`',
  },
  resources: {
    matters: 'it could use up memory, disk or processes of the machine',
    instead: 'bound it: a count, a size or a time',
  },
}
/** The most telling risk first; a rule that could have any effect is explained by none of them. */
const ORDER = Object.keys(ADVICE) as readonly Risk[]
const UNREADABLE: Advice = {
  matters: 'its effect cannot be known before it runs',
  instead: 'write the command plainly, one step at a time, with literal names',
}
const SHOWN_CHARACTERS = 120

/** Two sentences about a decision that is not yes: what was found and why it matters, then what would pass. */
export function explainDecision(decision: Decision): string {
  return `${whatWasFound(decision)}. ${whatWouldPass(decision)}`
}

/** A command that the policy permits in a sandbox, for an agent that would run it on the host. */
export function explainSandboxOnly({ commands, reason }: Decision): string {
  const found = commands.find(({ action }) => action === 'sandbox') ?? commands[0]
  const subject = found === undefined ? 'this command' : `\`${shown(found.argv)}\``
  return (
    `${subject} is permitted only in a sandbox (${reason}): on the host it could do whatever this user can. ` +
    'What would pass: `ringfence run -- COMMAND`, or the tools of `ringfence mcp`; or the user can approve it'
  )
}

/** A file that an agent may not read or write. */
export function explainPath(reason: string, op: string, workspace: string): string {
  const isProtected = reason.endsWith('is a protected name')
  const matters = isProtected
    ? 'programs of this machine run or load that file'
    : op === 'read'
      ? 'it is not part of this project'
      : 'it would change something outside this project'
  const instead = isProtected
    ? 'show the change to the user, who can make it'
    : `a file inside \`${workspace}\` that holds no credentials`
  return `${reason}: ${matters}. What would pass: ${instead}`
}

/** What the policy found, and why it matters. */
function whatWasFound(decision: Decision): string {
  const { reason } = decision
  const command = decidingCommand(decision)
  const subject = command === undefined ? reason : `\`${command}\` ${joins(reason)}`
  const advice = adviceFor(decision)
  return advice === undefined
    ? `${subject}, which a rule of the policy covers`
    : `${subject}: ${advice.matters}`
}

/** What would pass instead. */
export function whatWouldPass(decision: Decision): string {
  const { action } = decision
  const advice = adviceFor(decision)
  const person =
    action === 'ask' ? 'the user can approve it, or allow it with a rule in the policy' : undefined
  const ways = [advice?.instead, person].filter((way) => way !== undefined)
  if (ways.length === 0) return 'The policy does not permit it; choose another way'
  return `What would pass: ${ways.join('; or ')}`
}

/** Reasons are verb phrases ("publishes work") or noun phrases ("code that connects to the network"). */
const joins = (reason: string): string => (/^[a-z]+s\b/.test(reason) ? reason : `is refused: ${reason}`)

function decidingCommand({ action, commands, reason }: Decision): string | undefined {
  const found = commands.find((one) => one.action === action && one.reason === reason)
  if (found === undefined) return undefined
  return shown(found.argv)
}

function shown(argv: readonly string[]): string {
  const text = argv.join(' ')
  return text.length <= SHOWN_CHARACTERS ? text : `${text.slice(0, SHOWN_CHARACTERS)}…`
}

function adviceFor({ rules }: Decision): Advice | undefined {
  const risks = builtInRisks(rules[0] ?? '')
  if (risks === undefined) return undefined
  if (risks.length === RISK_NAMES.length) return UNREADABLE
  const first = ORDER.find((risk) => risks.includes(risk))
  return first && ADVICE[first]
}
