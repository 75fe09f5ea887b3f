import { visible } from '../model/visible.ts'
import { parseOptions, usage } from './options.ts'
import { print, server } from './remote.ts'

/** `ringfence approve ID` and `ringfence reject ID`: answer an approval. Without an id: list the pending approvals. */
const answerCommand =
  (verb: 'approve' | 'reject') =>
  async (args: readonly string[]): Promise<number> => {
    const { values, positionals } = parseOptions(verb, args, { reason: { type: 'string' } })
    const [id, ...rest] = positionals
    if (rest.length > 0) throw usage(verb, `unexpected \`${rest[0]}\``)
    if (id === undefined) return showOpen(values.json)
    const answered = await server().answer(id, verb === 'approve', values.reason)
    print(values.json, answered, () => `${visible(`${answered.id}: ${answered.state}`)}\n`)
    return 0
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
