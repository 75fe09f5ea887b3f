import type { Change } from '../../../../../src/client/types.ts'
import { DiffView } from '../../../components/diff-view.tsx'
import { ErrorMessage } from '../../../components/page.tsx'
import { Panel } from '../../../components/panel.tsx'
import { useClient } from '../../../data/live-context.ts'
import { useLoad } from '../../../data/use-load.ts'
import { formatBytes, safeLine } from '../../../format.ts'

/** What changes in one file. */
export function ChangeDetail({ id, change }: { readonly id: string; readonly change: Change }) {
  const client = useClient()
  const { value, error } = useLoad(`diff ${id} ${change.path}`, async () =>
    (await client.get(id)).diff(change.path),
  )
  return (
    <Panel
      className="change-view"
      title={<span className="mono">{safeLine(change.path.split('/').at(-1) ?? change.path)}</span>}
      aside={<span className="dim mono">{safeLine(change.path)}</span>}
    >
      <ErrorMessage text={error} />
      {value && typeof value.before === 'string' && typeof value.after === 'string' ? (
        <DiffView before={value.before} after={value.after} />
      ) : (
        value && <p>{description(change)}</p>
      )}
    </Panel>
  )
}

const KIND_NAMES = { file: 'File', dir: 'Directory', link: 'Symbolic link', other: 'Pipe, socket or device' }

/** For changes that have no text to compare. */
function description({ change, kind, mode, size, target, binary }: Change): string {
  const name = KIND_NAMES[kind]
  if (kind === 'other') return `${name}. It cannot be applied, only discarded.`
  if (change === 'mode') return `${name}: mode changed to ${mode.toString(8)}.`
  if (change === 'deleted') return `${name} deleted${kind === 'dir' ? ', with its contents' : ''}.`
  if (kind === 'link') return `${name} to ${safeLine(target ?? '')}.`
  if (kind === 'dir') return `New directory, mode ${mode.toString(8)}.`
  const reason = binary ? 'Binary file' : 'File too large to compare'
  return `${reason}, ${formatBytes(size)}. View it under Files.`
}
