import { useState } from 'react'
import type { ConsoleClient } from '../../../../src/client/console.ts'
import type { ConsoleSandbox } from '../../../../src/client/console-types.ts'
import { navigate } from '../../browser/route.ts'
import { Button } from '../../components/button.tsx'
import { ConfirmDialog } from '../../components/confirm-dialog.tsx'
import { CopyableCode } from '../../components/copyable-code.tsx'
import { attempt } from '../../components/toasts.tsx'
import { useClient } from '../../data/live-context.ts'
import { useMayCreate } from '../../data/permissions.ts'

type SandboxHandle = Awaited<ReturnType<ConsoleClient['get']>>

/** Pauses, snapshots, forks or destroys a running sandbox. */
export function SandboxActions({ sandbox }: { readonly sandbox: ConsoleSandbox }) {
  const client = useClient()
  const [isDestroying, setDestroying] = useState(false)
  const [snapshotId, setSnapshotId] = useState<string | undefined>(undefined)
  const isDisabled = !useMayCreate()
  const run = (action: (handle: SandboxHandle) => Promise<unknown>, done: string) => (): void =>
    void attempt(async () => action(await client.get(sandbox.id)), done)
  const pause = run((handle) => handle.pause(), 'Paused. Its timeouts are paused too.')
  const resume = run((handle) => handle.resume(), 'Resumed')
  const snapshot = run(async (handle) => setSnapshotId(idOf(await handle.snapshot())), 'Snapshot created')
  const fork = run(async (handle) => openSandbox(idOf(await handle.fork())), 'Forked. This is the fork.')
  const isPaused = sandbox.state === 'paused'
  return (
    <div className="actions">
      <Button disabled={isDisabled} onClick={isPaused ? resume : pause}>
        {isPaused ? 'Resume' : 'Pause'}
      </Button>
      <Button disabled={isDisabled} onClick={snapshot}>
        Snapshot
      </Button>
      <Button disabled={isDisabled} onClick={fork}>
        Fork
      </Button>
      <Button disabled={isDisabled} tone="danger" onClick={() => setDestroying(true)}>
        Destroy…
      </Button>
      {snapshotId && <CopyableCode text={snapshotId} />}
      {isDestroying && <DestroyDialog sandbox={sandbox} onClose={() => setDestroying(false)} />}
    </div>
  )
}

const idOf = (value: unknown): string => String((value as { id?: string } | undefined)?.id ?? '')

const openSandbox = (id: string): void => {
  if (id !== '') navigate(`/sandboxes/${id}`)
}

function DestroyDialog({
  sandbox,
  onClose,
}: {
  readonly sandbox: ConsoleSandbox
  readonly onClose: () => void
}) {
  const client = useClient()
  const destroy = async (): Promise<void> => {
    const done = sandbox.review ? 'Sandbox destroyed. Its changes are pending.' : 'Sandbox destroyed'
    if (await attempt(async () => (await client.get(sandbox.id)).close(), done)) onClose()
  }
  return (
    <ConfirmDialog
      title="Destroy this sandbox?"
      confirmLabel="Destroy"
      tone="danger"
      onClose={onClose}
      onConfirm={destroy}
    >
      <p>
        Ends all commands and connections in <code>{sandbox.id}</code> and deletes its files. Its audit log is
        kept{sandbox.review ? ', and its changes stay pending until you apply or discard them' : ''}.
      </p>
    </ConfirmDialog>
  )
}
