import type { Ringfence } from '../../compose/compose.ts'
import { approvedHostText, withText } from '../../model/host-question.ts'
import { visible } from '../../model/text/visible.ts'
import { hostEntry } from '../../policy/network/network.ts'
import type { AskHost, HostAnswer, HostQuestion } from '../../supervisor/approvals/host-questions.ts'
import { PolicyService } from '../../supervisor/policy-service.ts'
import { askLine, askYes } from './ask.ts'
import { err, errBytes } from './output.ts'
import type { TerminalLease } from './terminal-lease.ts'

/**
 * SECURITY: a program can leave the terminal in a state that hides or cuts off the question: an unfinished sequence, held
 * output, other margins, no line breaks, another character set, text in the colour of the background, no cursor.
 */
const PLAIN = [
  '\u0018\u001b\\',
  '\u001b[?2026l',
  '\u001b[!p\u001b7\u001b[r\u001b8',
  '\u001b[4l\u001b[?7h',
  '\u001b(B\u000f',
  '\u001b]104\u0007\u001b]110\u0007\u001b]111\u0007',
  '\u001b[0m\u001b[?25h\r\n',
].join('')

/** Asks at the terminal about hosts that are not on the list. */
export const hostAsker =
  (ringfence: Ringfence, lease: TerminalLease): AskHost =>
  (question) =>
    lease.ask(() => askAbout(question, ringfence))

async function askAbout(question: HostQuestion, ringfence: Ringfence): Promise<HostAnswer> {
  if (question.signal.aborted) return { state: 'expired', reason: 'the connection was given up' }
  const entry = hostEntry(question)
  errBytes(Buffer.from(PLAIN))
  err(`ringfence: a program in the sandbox wants to reach ${visible(entry)}, which is not on the list\n`)
  // The host stands on the line of the question, so that no other line can be taken for it.
  const text = `allow ${visible(entry)}? [o]nce, this [s]andbox, [a]lways, [N]o: `
  const answer = await askLine(text, question.signal)
  if (question.signal.aborted) return { state: 'expired', reason: 'no answer in time' }
  if (/^o(nce)?$/i.test(answer ?? '')) return approved('once')
  if (/^s(andbox)?$/i.test(answer ?? '')) return approved('sandbox')
  if (!/^a(lways)?$/i.test(answer ?? '')) return { state: 'rejected', by: 'terminal' }
  return (await saveAlways(entry, ringfence)) ? approved('always') : askAbout(question, ringfence)
}

const approved = (scope: HostAnswer['scope']): HostAnswer => ({ state: 'approved', by: 'terminal', scope })

/** Shows the change of the policy, and saves it if the person says yes. */
async function saveAlways(entry: string, ringfence: Ringfence): Promise<boolean> {
  const { policyFile: file, home, current, policyHash: hash, inspect, reload } = ringfence
  const service = new PolicyService({
    file,
    home,
    current,
    hash,
    inspect,
    reload: async () => {
      await reload()
      return { policy: hash() }
    },
  })
  const { text, base } = service.source()
  const added = approvedHostText(entry, null)
  err(`this is added to ${visible(file)}:\n${added.replace(/^/gm, '  ')}\n`)
  if (!(await askYes('save it? [y/N] ', false))) return false
  try {
    await service.save(withText(text, added), base)
    return true
  } catch (error) {
    err(`ringfence: not saved: ${visible((error as Error).message)}\n`)
    return false
  }
}
