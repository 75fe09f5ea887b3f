import type { Suggestion } from '../model/api/policy.ts'
import { timesOf } from '../model/event.ts'

/** Suggestions from approvals and refused connections. Pure: records in, suggestions out; a person decides. */
type AuditRecord = Readonly<Record<string, unknown>>

const ENOUGH = 2
const MOST = 20

/** Suggestions from audit records, oldest first. */
export function suggestFrom(records: readonly AuditRecord[]): readonly Suggestion[] {
  return [...ruleSuggestions(records), ...hostSuggestions(records)].slice(0, MOST)
}

type Answered = { readonly command: string; readonly approved: boolean; readonly seq: number }

/** Commands that needed approval, with the answer. */
function answersIn(records: readonly AuditRecord[]): readonly Answered[] {
  const asked = new Map<string, AuditRecord>()
  const answers: Answered[] = []
  for (const record of records) {
    const id = String(record.exec_id ?? '')
    if (record.event === 'PolicyDecision' && record.action === 'ask' && id) asked.set(id, record)
    const question = asked.get(id)
    if (record.event !== 'Approval' || typeof record.approved !== 'boolean' || !question) continue
    answers.push({
      command: String(question.command ?? ''),
      approved: record.approved,
      seq: Number(record.seq),
    })
  }
  return answers
}

/** The program and, if the next word looks like one, its subcommand. */
function prefixIn(command: string): readonly string[] {
  // Shell syntax means several commands, or one that a prefix cannot describe.
  if (/[|&;<>()$`\\"'\n*?[\]{}~]/.test(command)) return []
  const [program, next] = command.trim().split(/\s+/)
  if (!program || !/^[\w.-]+$/.test(program)) return []
  return next !== undefined && /^[a-z][a-z-]*$/.test(next) ? [program, next] : [program]
}

function ruleSuggestions(records: readonly AuditRecord[]): readonly Suggestion[] {
  const groups = new Map<string, Answered[]>()
  for (const answer of answersIn(records)) {
    const prefix = prefixIn(answer.command)
    if (prefix.length === 0) continue
    const key = JSON.stringify(prefix)
    groups.set(key, [...(groups.get(key) ?? []), answer])
  }
  return [...groups].flatMap(([key, answers]) => {
    const alike = answers.every(({ approved }) => approved === answers[0]?.approved)
    if (answers.length < ENOUGH || !alike) return []
    return [ruleSuggestion(JSON.parse(key) as string[], answers)]
  })
}

function ruleSuggestion(prefix: readonly string[], answers: readonly Answered[]): Suggestion {
  const approved = answers[0]?.approved === true
  const example = answers.at(-1)?.command ?? prefix.join(' ')
  const action = approved ? 'sandbox' : 'deny'
  return {
    kind: 'rule',
    title: `${approved ? 'Stop asking about' : 'Refuse'} \`${prefix.join(' ')}\``,
    why: `a person ${approved ? 'approved' : 'rejected'} it ${answers.length} times and never answered otherwise`,
    toml: [
      '[[policy.rule]]',
      `prefix = ${JSON.stringify(prefix)}`,
      `action = "${action}"`,
      `why = "${approved ? 'approved' : 'rejected'} every time"`,
      `match = [${JSON.stringify(example)}]`,
    ].join('\n'),
    seqs: answers.map(({ seq }) => seq),
  }
}

function hostSuggestions(records: readonly AuditRecord[]): readonly Suggestion[] {
  const hosts = new Map<string, { readonly seqs: readonly number[]; readonly times: number }>()
  for (const record of records) {
    const { event, host, details, seq } = record
    if (event !== 'SandboxViolation' || typeof host !== 'string') continue
    // SECURITY: only hosts that were just not on the list; private and metadata addresses are never suggested.
    if (!/not (?:on|in|among)|allow/i.test(String(details)) || !/^[a-z0-9.-]+\.[a-z]{2,}$/i.test(host))
      continue
    const { seqs, times } = hosts.get(host) ?? { seqs: [], times: 0 }
    hosts.set(host, { seqs: [...seqs, Number(seq)], times: times + timesOf(record) })
  }
  return [...hosts].flatMap(([host, { seqs, times }]) =>
    times < ENOUGH
      ? []
      : [
          {
            kind: 'host' as const,
            title: `Let sandboxes ask for \`${host}\``,
            why: `it was refused ${times} times because it is not allowed`,
            toml: `[network]\nallow_hosts = [${JSON.stringify(host)}]`,
            seqs,
          },
        ],
  )
}
