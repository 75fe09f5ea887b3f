import { useState } from 'react'
import type { Approval } from '../../../../src/client/types.ts'
import { ConfirmDialog } from '../../components/confirm-dialog.tsx'
import { TextField } from '../../components/fields.tsx'
import { attempt } from '../../components/toasts.tsx'
import { useClient } from '../../data/live-context.ts'
import { safeText } from '../../format.ts'
import { AlwaysAllowDialog } from './always-allow-dialog.tsx'
import { AlwaysAllowHostDialog } from './always-allow-host-dialog.tsx'

export type Choice = 'once' | 'sandbox' | 'always' | 'reject'

type DialogProps = { readonly approval: Approval; readonly onClose: () => void }

/** Confirms a decision before it counts. */
export function ApprovalDialog({ choice, ...props }: DialogProps & { readonly choice: Choice }) {
  switch (choice) {
    case 'once':
      return props.approval.host ? (
        <ApproveHostDialog {...props} scope="once" />
      ) : (
        <ApproveOnceDialog {...props} />
      )
    case 'sandbox':
      return <ApproveHostDialog {...props} scope="sandbox" />
    case 'always':
      return props.approval.host ? (
        <AlwaysAllowHostDialog {...props} host={props.approval.host} />
      ) : (
        <AlwaysAllowDialog {...props} />
      )
    case 'reject':
      return <RejectDialog {...props} />
  }
}

function ApproveOnceDialog({ approval, onClose }: DialogProps) {
  const client = useClient()
  const approve = async (): Promise<void> => {
    if (await attempt(() => client.answer(approval.id, true), 'Approved. The command is running.')) onClose()
  }
  return (
    <ConfirmDialog
      title="Approve this command once?"
      confirmLabel="Approve once"
      onClose={onClose}
      onConfirm={approve}
    >
      <pre className="command">{safeText(approval.command)}</pre>
      <p className="dim">It runs once, in its sandbox. The decision is recorded in the audit log.</p>
    </ConfirmDialog>
  )
}

const HOST_SCOPE_TEXT = {
  once: ['Allow this host once?', 'Allow once', 'Only the connections that wait now are made.'],
  sandbox: [
    'Allow this host for the sandbox?',
    'Allow for this sandbox',
    'It is not asked again until the sandbox ends.',
  ],
} as const

function ApproveHostDialog({
  approval,
  onClose,
  scope,
}: DialogProps & { readonly scope: 'once' | 'sandbox' }) {
  const client = useClient()
  const [title, confirmLabel, effect] = HOST_SCOPE_TEXT[scope]
  const approve = async (): Promise<void> => {
    const answer = () => client.answer(approval.id, true, undefined, scope)
    if (await attempt(answer, 'Approved. The connection goes on.')) onClose()
  }
  return (
    <ConfirmDialog title={title} confirmLabel={confirmLabel} onClose={onClose} onConfirm={approve}>
      <pre className="command">{safeText(approval.command)}</pre>
      <p className="dim">{effect} The decision is recorded in the audit log.</p>
    </ConfirmDialog>
  )
}

function RejectDialog({ approval, onClose }: DialogProps) {
  const client = useClient()
  const [reason, setReason] = useState('')
  const reject = async (): Promise<void> => {
    if (await attempt(() => client.answer(approval.id, false, reason.trim()), 'Rejected')) onClose()
  }
  return (
    <ConfirmDialog
      title={approval.host ? 'Reject this host?' : 'Reject this command?'}
      confirmLabel="Reject"
      tone="danger"
      onClose={onClose}
      onConfirm={reject}
    >
      <pre className="command">{safeText(approval.command)}</pre>
      <TextField
        label="Reason"
        value={reason}
        onChange={setReason}
        autoFocus
        placeholder="e.g. wait for the code review"
        hint="Optional. Recorded in the audit log."
      />
    </ConfirmDialog>
  )
}
