import type { Change } from '../../../../../src/client/types.ts'
import { useIdentity } from '../../../data/live-context.ts'
import { formatBytes, safeLine } from '../../../format.ts'

export const CHANGE_SIGNS = { added: '+', changed: '~', deleted: '−', mode: '#' } as const

/** The directory that contains all changes; paths are shown relative to it. */
export function commonDirectory(changes: readonly Change[]): string {
  const [first = '', ...others] = changes.map(({ path }) => path.replace(/[^/]*$/, ''))
  let dir = first
  while (dir !== '' && !others.every((other) => other.startsWith(dir))) dir = dir.replace(/[^/]*\/$/, '')
  return dir
}

/** The changed files; operators can check some of them to apply only those. */
export function ChangeList(props: {
  readonly changes: readonly Change[]
  readonly selected: string | undefined
  readonly checked: ReadonlySet<string>
  readonly onSelect: (path: string) => void
  readonly onCheck: (path: string) => void
}) {
  const { operator } = useIdentity()
  const base = commonDirectory(props.changes)
  return (
    <ul className="change-list" aria-label="Changes">
      {props.changes.map((change) => {
        const name = safeLine(change.path.slice(base.length) || change.path)
        return (
          <li key={change.path}>
            {operator && (
              <input
                type="checkbox"
                checked={props.checked.has(change.path)}
                onChange={() => props.onCheck(change.path)}
                aria-label={`Select ${name}`}
              />
            )}
            <ChangeButton
              change={change}
              name={name}
              isCurrent={change.path === props.selected}
              onClick={() => props.onSelect(change.path)}
            />
          </li>
        )
      })}
    </ul>
  )
}

function ChangeButton(props: {
  readonly change: Change
  readonly name: string
  readonly isCurrent: boolean
  readonly onClick: () => void
}) {
  const { change, name } = props
  return (
    <button
      type="button"
      aria-current={props.isCurrent ? 'true' : undefined}
      onClick={props.onClick}
      title={safeLine(change.path)}
    >
      <span className={`change ${change.change}`}>
        <span aria-hidden="true">{CHANGE_SIGNS[change.change]}</span> {change.change}
      </span>
      <span className="name">
        {name}
        {change.kind === 'dir' ? '/' : ''}
      </span>
      <span className="dim num">{detailOf(change)}</span>
    </button>
  )
}

function detailOf({ change, kind, mode, size }: Change): string {
  if (change === 'mode') return mode.toString(8)
  if (kind === 'file') return change === 'deleted' ? '' : formatBytes(size)
  return kind === 'dir' ? '' : kind
}
