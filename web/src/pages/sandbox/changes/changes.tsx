import { useState } from 'react'
import type { Applied, Change } from '../../../../../src/client/types.ts'
import { useParam } from '../../../browser/route.ts'
import { EmptyState } from '../../../components/empty-state.tsx'
import { ErrorMessage } from '../../../components/page.tsx'
import { Panel } from '../../../components/panel.tsx'
import { useClient, useIdentity, useLiveData } from '../../../data/live-context.ts'
import { useLoad } from '../../../data/use-load.ts'
import { plural, safeLine } from '../../../format.ts'
import { ChangeActions } from './change-actions.tsx'
import { ChangeDetail } from './change-detail.tsx'
import { ChangeList } from './change-list.tsx'

type Props = { readonly id: string; readonly isEnded: boolean }

/** The changes of a sandbox in review mode: compared one by one, then applied to the host or discarded. */
export function Changes({ id, isEnded }: Props) {
  const [path, setPath] = useParam('path')
  const [checked, setChecked] = useState<ReadonlySet<string>>(new Set())
  const [notApplied, setNotApplied] = useState<Applied['refused']>([])
  const { value, error, reload } = useChanges(id, isEnded)
  const changes = value?.items ?? []
  const shown = changes.find((change) => change.path === path) ?? changes[0]
  const onDone = (result: Applied | undefined): void => {
    setChecked(new Set())
    setNotApplied(result?.refused ?? [])
    reload()
  }
  if (value && changes.length === 0) return <NoChanges isEnded={isEnded} notApplied={notApplied} />
  return (
    <div className="split changes">
      <Panel
        title={value ? plural(value.total, 'pending change') : 'Pending changes'}
        aside={<ChangeAside id={id} isEnded={isEnded} changes={changes} checked={checked} onDone={onDone} />}
      >
        <ErrorMessage text={error} />
        <NotApplied changes={notApplied} />
        <ChangeList
          changes={changes}
          selected={shown?.path}
          checked={checked}
          onSelect={setPath}
          onCheck={(name) => setChecked(toggled(checked, name))}
        />
        {value && value.total > changes.length && (
          <p className="dim note">
            Showing the first {changes.length} of {value.total} changes.
          </p>
        )}
      </Panel>
      {shown && <ChangeDetail key={`${shown.path} ${shown.version}`} id={id} change={shown} />}
    </div>
  )
}

/** Fetched again whenever a record of the sandbox arrives. */
function useChanges(id: string, isEnded: boolean) {
  const client = useClient()
  const { records } = useLiveData()
  const last = records.findLast((record) => record.sandbox_id === id)?.seq ?? -1
  return useLoad(`changes ${id} ${isEnded} ${last}`, async () => (await client.get(id)).changes())
}

function toggled(names: ReadonlySet<string>, name: string): ReadonlySet<string> {
  const next = new Set(names)
  if (!next.delete(name)) next.add(name)
  return next
}

function ChangeAside(
  props: Props & {
    readonly changes: readonly Change[]
    readonly checked: ReadonlySet<string>
    readonly onDone: (result: Applied | undefined) => void
  },
) {
  const { operator } = useIdentity()
  const { changes, checked } = props
  if (!operator) return <span className="dim">Only operators can apply or discard changes</span>
  if (changes.length === 0) return null
  return <ChangeActions {...props} checked={changes.filter(({ path }) => checked.has(path))} />
}

function NoChanges(props: { readonly isEnded: boolean; readonly notApplied: Applied['refused'] }) {
  return (
    <Panel title="Changes">
      <NotApplied changes={props.notApplied} />
      {props.isEnded ? (
        <EmptyState title="No pending changes">
          Its changes were applied or discarded, or it changed nothing. The audit log has the details.
        </EmptyState>
      ) : (
        <EmptyState title="No changes yet">
          Writes to the host’s directories appear here first. They reach the host when you apply them.
        </EmptyState>
      )}
    </Panel>
  )
}

const MAX_LISTED = 8

/** Changes that the server did not apply, with the reasons. */
function NotApplied({ changes }: { readonly changes: Applied['refused'] }) {
  if (changes.length === 0) return null
  return (
    <div role="alert" className="error not-applied">
      <p>✕ {plural(changes.length, 'change')} not applied, still pending:</p>
      <ul>
        {changes.slice(0, MAX_LISTED).map(({ path, why }) => (
          <li key={path}>
            <code>{safeLine(path)}</code> {safeLine(why)}
          </li>
        ))}
      </ul>
    </div>
  )
}
