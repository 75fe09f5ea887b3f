import { useEffect, useState } from 'react'
import type { Approval } from '../../src/client/types.ts'
import { Confirm } from './dialog.tsx'
import { Field } from './fields.tsx'
import { plain } from './format.ts'
import { useClient } from './live.ts'
import { useLoad } from './load.ts'
import { attempt } from './messages.tsx'

export type Way = 'once' | 'always' | 'reject'

/** The answer to one question, once more looked at before it counts. */
export function Answer(props: {
  readonly approval: Approval
  readonly way: Way
  readonly onClose: () => void
}) {
  switch (props.way) {
    case 'once':
      return <Once {...props} />
    case 'always':
      return <Always {...props} />
    case 'reject':
      return <Reject {...props} />
  }
}

type Props = { readonly approval: Approval; readonly onClose: () => void }

function Once({ approval, onClose }: Props) {
  const client = useClient()
  return (
    <Confirm
      title="Approve this command once?"
      yes="Approve once"
      onClose={onClose}
      onYes={async () => {
        if (
          await attempt(() => client.respond(approval.id, true), 'Approved; it runs now, inside its sandbox')
        )
          onClose()
      }}
    >
      <pre className="command">{plain(approval.command)}</pre>
      <p className="dim">It runs in its sandbox, this once. The answer is on record with your key.</p>
    </Confirm>
  )
}

function Reject({ approval, onClose }: Props) {
  const client = useClient()
  const [reason, setReason] = useState('')
  return (
    <Confirm
      title="Reject this command?"
      yes="Reject"
      tone="bad"
      onClose={onClose}
      onYes={async () => {
        if (
          await attempt(() => client.respond(approval.id, false, reason.trim()), 'Rejected; it does not run')
        )
          onClose()
      }}
    >
      <pre className="command">{plain(approval.command)}</pre>
      <Field
        label="Reason, for the record"
        value={reason}
        onChange={setReason}
        autoFocus
        placeholder="for example: not before the review"
      />
    </Confirm>
  )
}

const tomlText = (text: string): string => JSON.stringify(text)

/** A rule that would let this command pass from now on, as narrow as its words. */
export function ruleFor(approval: Approval): string {
  const asked =
    approval.decision.commands.find(({ action }) => action === 'ask') ?? approval.decision.commands[0]
  const words = asked?.argv ?? [approval.command]
  const first = words.findIndex((word) => /[^\w@%+=:,./-]/.test(word))
  const prefix = words.slice(0, first < 1 ? words.length : first).slice(0, 4)
  return [
    '[[policy.rule]]',
    `prefix = [${prefix.map(tomlText).join(', ')}]`,
    'action = "sandbox"',
    'why = "approved for good in the console"',
    `match = [${tomlText(prefix.join(' '))}]`,
    '',
  ].join('\n')
}

const CHECK_MS = 250

function Always({ approval, onClose }: Props) {
  const client = useClient()
  const { value: policy } = useLoad('policy', () => client.policy())
  const [rule, setRule] = useState(() => ruleFor(approval))
  const [problem, setProblem] = useState<string | undefined>('…')
  const whole =
    policy && `${policy.text ?? ''}${policy.text && !policy.text.endsWith('\n') ? '\n' : ''}\n${rule}`
  useEffect(() => {
    if (whole === undefined) return
    const timer = setTimeout(() => {
      client.checkPolicy(whole).then(
        (found) => setProblem(found.ok ? undefined : found.problem),
        (error: Error) => setProblem(error.message),
      )
    }, CHECK_MS)
    return () => clearTimeout(timer)
  }, [client, whole])
  return (
    <Confirm
      title="Approve this, and stop asking"
      yes="Save the rule and approve"
      typing
      onClose={onClose}
      disabled={problem !== undefined}
      onYes={async () => {
        const saved = await attempt(() => client.savePolicy(whole as string, policy?.base ?? ''))
        if (!saved) return
        if (
          await attempt(
            () => client.respond(approval.id, true, 'with a rule'),
            'The rule is in force; approved',
          )
        )
          onClose()
      }}
    >
      <pre className="command">{plain(approval.command)}</pre>
      <Field
        label="The rule that will be added to the policy"
        value={rule}
        onChange={setRule}
        lines={7}
        mono
        autoFocus
        hint={
          problem === undefined
            ? '✓ it loads, and its example holds'
            : problem === '…'
              ? 'checking…'
              : `✕ ${problem}`
        }
      />
      <p className="dim">
        Hard denies stay: no rule relaxes them. The file is <code>{policy?.file ?? '…'}</code>.
      </p>
    </Confirm>
  )
}
