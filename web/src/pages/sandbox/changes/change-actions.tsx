import { useState } from 'react'
import type { Applied, Change } from '../../../../../src/client/types.ts'
import { Button } from '../../../components/button.tsx'
import { ConfirmDialog } from '../../../components/confirm-dialog.tsx'
import { attempt } from '../../../components/toasts.tsx'
import { useClient } from '../../../data/live-context.ts'
import { plural, safeLine } from '../../../format.ts'
import { CHANGE_SIGNS, commonDirectory } from './change-list.tsx'

type Props = {
  readonly id: string
  readonly isEnded: boolean
  readonly changes: readonly Change[]
  readonly checked: readonly Change[]
  readonly onDone: (result: Applied | undefined) => void
}

/** Applies all or the checked changes, or discards all of them. */
export function ChangeActions(props: Props) {
  const { isEnded, changes, checked } = props
  // The changes on the screen when the button was pressed are applied, and none that arrived since.
  const [toApply, setToApply] = useState<readonly Change[] | undefined>(undefined)
  const [isDiscarding, setDiscarding] = useState(false)
  return (
    <span className="line">
      <Button tone="primary" onClick={() => setToApply(checked.length > 0 ? checked : changes)}>
        {checked.length > 0 ? `Apply selected (${checked.length})…` : 'Apply all…'}
      </Button>
      <Button tone="danger" onClick={() => setDiscarding(true)}>
        {isEnded ? 'Discard all…' : 'Destroy and discard…'}
      </Button>
      {toApply && <ApplyDialog {...props} changes={toApply} onClose={() => setToApply(undefined)} />}
      {isDiscarding && <DiscardDialog {...props} onClose={() => setDiscarding(false)} />}
    </span>
  )
}

type DialogProps = Props & { readonly onClose: () => void }

function ApplyDialog({ id, changes, onDone, onClose }: DialogProps) {
  const client = useClient()
  const apply = async (): Promise<void> => {
    const seen = Object.fromEntries(changes.map(({ path, version }) => [path, version]))
    if (await attempt(async () => onDone(await (await client.get(id)).apply({ seen })))) onClose()
  }
  return (
    <ConfirmDialog
      title={changes.length === 1 ? 'Apply this change?' : `Apply these ${changes.length} changes?`}
      confirmLabel="Apply"
      onClose={onClose}
      onConfirm={apply}
    >
      <ChangeSummary changes={changes} />
      <p className="dim">Files that have changed since, in the sandbox or on the host, are not applied.</p>
    </ConfirmDialog>
  )
}

function DiscardDialog({ id, isEnded, changes, onDone, onClose }: DialogProps) {
  const client = useClient()
  const discard = async (): Promise<void> => {
    const isDone = await attempt(async () => {
      const sandbox = await client.get(id)
      if (!isEnded) await sandbox.close()
      await sandbox.drop()
      onDone(undefined)
    }, 'Changes discarded')
    if (isDone) onClose()
  }
  return (
    <ConfirmDialog
      title={isEnded ? 'Discard all changes?' : 'Destroy this sandbox and discard its changes?'}
      confirmLabel={isEnded ? 'Discard' : 'Destroy and discard'}
      tone="danger"
      onClose={onClose}
      onConfirm={discard}
    >
      <p>
        {isEnded ? '' : 'A running sandbox depends on its changes, so it is destroyed first. '}
        {plural(changes.length, 'change')} will be deleted. The host’s files stay as they are.
      </p>
    </ConfirmDialog>
  )
}

const MAX_LISTED = 8

/** What is about to be applied, by name. */
function ChangeSummary({ changes }: { readonly changes: readonly Change[] }) {
  const base = commonDirectory(changes)
  return (
    <>
      <p>
        {countsOf(changes)} in <code>{safeLine(base)}</code>:
      </p>
      <ul className="change-summary mono">
        {changes.slice(0, MAX_LISTED).map((change) => (
          <li key={change.path} className={`change ${change.change}`}>
            {CHANGE_SIGNS[change.change]} {safeLine(change.path.slice(base.length))}
          </li>
        ))}
      </ul>
      {changes.length > MAX_LISTED && <p className="dim">and {changes.length - MAX_LISTED} more</p>}
    </>
  )
}

const COUNTED = { added: 'added', changed: 'changed', deleted: 'deleted', mode: 'with a new mode' } as const

const countsOf = (changes: readonly Change[]): string =>
  Object.entries(COUNTED)
    .map(([kind, name]) => [changes.filter(({ change }) => change === kind).length, name] as const)
    .flatMap(([count, name]) => (count === 0 ? [] : [`${count} ${name}`]))
    .join(', ')
