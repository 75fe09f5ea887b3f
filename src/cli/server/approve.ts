import { approvedHostText, HOST_SCOPES, type HostScope, withText } from '../../model/host-question.ts'
import { visible, visibleLines } from '../../model/text/visible.ts'
import { parseOptions, usage } from '../options/options.ts'
import { askYes } from '../terminal/ask.ts'
import { err } from '../terminal/output.ts'
import { print, server } from './remote.ts'

const OPTIONS = {
  reason: { type: 'string' },
  for: { type: 'string' },
  yes: { type: 'boolean', short: 'y' },
} as const

/** `ringfence approve ID` and `ringfence reject ID`: answer an approval. Without an id: list the pending approvals. */
const answerCommand =
  (verb: 'approve' | 'reject') =>
  async (args: readonly string[]): Promise<number> => {
    const { values, positionals } = parseOptions(verb, args, OPTIONS)
    const [id, ...rest] = positionals
    if (rest.length > 0) throw usage(verb, `unexpected \`${rest[0]}\``)
    if (id === undefined) return showOpen(values.json)
    const scope = scopeOf(verb, values.for)
    if (scope === 'always' && !(await saveAlways(id, values))) return 1
    const answered = await server().answer(id, verb === 'approve', values.reason, scope)
    print(values.json, answered, () => `${visible(`${answered.id}: ${answered.state}`)}\n`)
    return 0
  }

function scopeOf(verb: 'approve' | 'reject', text: string | undefined): HostScope | undefined {
  if (text === undefined) return undefined
  const scope = HOST_SCOPES.find((one) => one === text)
  if (verb === 'reject' || !scope)
    throw usage(verb, '--for takes once, sandbox or always, and only with approve')
  return scope
}

/** Shows the change of the policy that "always" means, and saves it after a yes. */
async function saveAlways(
  id: string,
  { yes, json }: { readonly yes?: boolean | undefined; readonly json?: boolean | undefined },
): Promise<boolean> {
  const client = server()
  const { host } = await client.approval(id)
  if (!host) throw usage('approve', `--for always: approval ${visible(id)} is not about a host`)
  const { text = '', base = '', file = '' } = await client.policy()
  const added = approvedHostText(host.entry, host.tenant)
  err(`this is added to ${visible(file)} on the server:\n${visibleLines(added).replace(/^/gm, '  ')}\n`)
  if (!yes && !(await askYes('save it and approve? [y/N] ', json === true))) {
    err('ringfence: not approved; add --yes to save without a question\n')
    return false
  }
  await client.savePolicy(withText(text, added), base)
  return true
}

async function showOpen(json: boolean | undefined): Promise<number> {
  const { items } = await server().approvals('pending')
  print(json, items, () =>
    items.length === 0
      ? 'no pending approvals\n'
      : items
          .map((one) => `${visible(one.id)}  ${visible(one.command)}\n    ${visible(one.decision.reason)}\n`)
          .join(''),
  )
  return 0
}

/** `ringfence approve ID`. */
export const approve = answerCommand('approve')
/** `ringfence reject ID`. */
export const reject = answerCommand('reject')

/** `ringfence reload`: reloads the server's configuration. */
export async function reload(args: readonly string[]): Promise<number> {
  const { values, positionals } = parseOptions('reload', args, {})
  if (positionals.length > 0) throw usage('reload', `unexpected \`${positionals[0]}\``)
  const done = await server().reload()
  print(values.json, done, () => `reloaded; policy ${visible(done.policy)}\n`)
  return 0
}
