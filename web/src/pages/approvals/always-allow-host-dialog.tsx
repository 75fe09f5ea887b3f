import type { Approval } from '../../../../src/client/types.ts'
import { approvedHostText, withText } from '../../../../src/model/host-question.ts'
import { ConfirmDialog } from '../../components/confirm-dialog.tsx'
import { attempt } from '../../components/toasts.tsx'
import { useClient } from '../../data/live-context.ts'
import { useLoad } from '../../data/use-load.ts'
import { safeText } from '../../format.ts'

type Props = {
  readonly approval: Approval
  readonly host: NonNullable<Approval['host']>
  readonly onClose: () => void
}

/** Shows what "always" adds to the policy, saves it, and lets the connection go on. */
export function AlwaysAllowHostDialog({ approval, host, onClose }: Props) {
  const client = useClient()
  const { value: policy } = useLoad('policy', () => client.policy())
  const added = approvedHostText(host.entry, host.tenant)
  const save = async (): Promise<void> => {
    const next = withText(policy?.text ?? '', added)
    if (!(await attempt(() => client.savePolicy(next, policy?.base ?? '')))) return
    const answer = () => client.answer(approval.id, true, undefined, 'always')
    if (await attempt(answer, 'Policy saved. The connection goes on.')) onClose()
  }
  return (
    <ConfirmDialog
      title="Always allow this host?"
      confirmLabel="Save and allow"
      multiline
      onClose={onClose}
      disabled={policy === undefined}
      onConfirm={save}
    >
      <p>
        {host.tenant === null
          ? 'Your own sandboxes that ask about hosts will not ask about this one.'
          : 'Sandboxes of this tenant that ask about hosts will not ask about this one.'}
      </p>
      <pre className="command">{safeText(added.trim())}</pre>
      <p className="dim">
        Added to <code>{policy?.file ?? '…'}</code>.
      </p>
    </ConfirmDialog>
  )
}
