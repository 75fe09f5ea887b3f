import type { PolicyView } from '../../../../src/client/console-types.ts'
import { ConfirmDialog } from '../../components/confirm-dialog.tsx'
import { DiffView } from '../../components/diff-view.tsx'
import { attempt } from '../../components/toasts.tsx'
import { useClient } from '../../data/live-context.ts'

/** Shows what changes in the policy file, then saves and activates it. */
export function SavePolicyDialog(props: {
  readonly text: string
  readonly policy: PolicyView
  readonly onClose: () => void
  readonly onSaved: () => void
}) {
  const client = useClient()
  const { policy, text } = props
  const save = async (): Promise<void> => {
    if (!(await attempt(() => client.savePolicy(text, policy.base ?? ''), 'Policy saved and active'))) return
    props.onClose()
    props.onSaved()
  }
  return (
    <ConfirmDialog
      title="Save this policy?"
      confirmLabel="Save and activate"
      onClose={props.onClose}
      onConfirm={save}
    >
      <DiffView before={policy.text ?? ''} after={text} />
      <p className="dim">
        Applies to every command from now on, also in running sandboxes. An invalid policy is not saved.
      </p>
    </ConfirmDialog>
  )
}
