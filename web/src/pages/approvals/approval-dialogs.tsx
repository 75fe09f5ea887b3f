import { useState } from 'react'
import type { Approval } from '../../../../src/client/types.ts'
import { ConfirmDialog } from '../../components/confirm-dialog.tsx'
import { TextField } from '../../components/fields.tsx'
import { attempt } from '../../components/toasts.tsx'
import { useClient } from '../../data/live-context.ts'
import { safeText } from '../../format.ts'
import { AlwaysAllowDialog } from './always-allow-dialog.tsx'

export type Choice = 'once' | 'always' | 'reject'

type DialogProps = { readonly approval: Approval; readonly onClose: () => void }

/** Confirms a decision before it counts. */
export function ApprovalDialog({ choice, ...props }: DialogProps & { readonly choice: Choice }) {
  switch (choice) {
    case 'once':
      return <ApproveOnceDialog {...props} />
    case 'always':
      return <AlwaysAllowDialog {...props} />
    case 'reject':
      return <RejectDialog {...props} />
  }
}

function ApproveOnceDialog({ approval, onClose }: DialogProps) {
  const client = useClient()
  const approve = async (): Promise<void> => {
    if (await attempt(() => client.respond(approval.id, true), 'Approved. The command is running.')) onClose()
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

function RejectDialog({ approval, onClose }: DialogProps) {
  const client = useClient()
  const [reason, setReason] = useState('')
  const reject = async (): Promise<void> => {
    if (await attempt(() => client.respond(approval.id, false, reason.trim()), 'Rejected')) onClose()
  }
  return (
    <ConfirmDialog
      title="Reject this command?"
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
