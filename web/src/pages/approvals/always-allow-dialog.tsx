import { useState } from 'react'
import type { PolicyCheck } from '../../../../src/client/console-types.ts'
import type { Approval } from '../../../../src/client/types.ts'
import { ConfirmDialog } from '../../components/confirm-dialog.tsx'
import { TextField } from '../../components/fields.tsx'
import { attempt } from '../../components/toasts.tsx'
import { useClient } from '../../data/live-context.ts'
import { useLoad } from '../../data/use-load.ts'
import { usePolicyCheck } from '../../data/use-policy-check.ts'
import { safeText } from '../../format.ts'

/** Approves a command and adds a rule to the policy, so that it needs no approval from now on. */
export function AlwaysAllowDialog(props: { readonly approval: Approval; readonly onClose: () => void }) {
  const { approval, onClose } = props
  const client = useClient()
  const { value: policy } = useLoad('policy', () => client.policy())
  const [rule, setRule] = useState(() => ruleFor(approval))
  const newPolicy = policy && withRule(policy.text ?? '', rule)
  const check = usePolicyCheck(newPolicy)
  const save = async (): Promise<void> => {
    if (!(await attempt(() => client.savePolicy(newPolicy as string, policy?.base ?? '')))) return
    const respond = () => client.answer(approval.id, true, 'with a new policy rule')
    if (await attempt(respond, 'Rule saved and command approved')) onClose()
  }
  return (
    <ConfirmDialog
      title="Always allow this command?"
      confirmLabel="Save rule and approve"
      multiline
      onClose={onClose}
      disabled={!check?.ok}
      onConfirm={save}
    >
      <pre className="command">{safeText(approval.command)}</pre>
      <TextField
        label="Rule to add to the policy"
        value={rule}
        onChange={setRule}
        lines={7}
        mono
        autoFocus
        hint={checkText(check)}
      />
      <p className="dim">
        Saved to <code>{policy?.file ?? '…'}</code>. Rules cannot override hard denies.
      </p>
    </ConfirmDialog>
  )
}

function checkText(check: PolicyCheck | undefined): string {
  if (check === undefined) return 'Checking…'
  return check.ok ? '✓ Valid: all examples pass' : `✕ ${check.problem}`
}

const withRule = (policy: string, rule: string): string =>
  `${policy}${policy && !policy.endsWith('\n') ? '\n' : ''}\n${rule}`

const tomlString = (text: string): string => JSON.stringify(text)
const MAX_PREFIX = 4

/** A rule that allows this command in its sandbox, as narrow as its plain words permit. */
function ruleFor(approval: Approval): string {
  const { commands } = approval.decision
  const asked = commands.find(({ action }) => action === 'ask') ?? commands[0]
  const words = asked?.argv ?? [approval.command]
  const special = words.findIndex((word) => /[^\w@%+=:,./-]/.test(word))
  const prefix = words.slice(0, special < 1 ? words.length : special).slice(0, MAX_PREFIX)
  return [
    '[[policy.rule]]',
    `prefix = [${prefix.map(tomlString).join(', ')}]`,
    'action = "sandbox"',
    'why = "always allowed in the console"',
    `match = [${tomlString(prefix.join(' '))}]`,
    '',
  ].join('\n')
}
