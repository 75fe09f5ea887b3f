import { useState } from 'react'
import type { VolumeInfo } from '../../../../src/client/types.ts'
import { ConfirmDialog } from '../../components/confirm-dialog.tsx'
import { EmptyState } from '../../components/empty-state.tsx'
import { TextField } from '../../components/fields.tsx'
import { Link } from '../../components/link.tsx'
import { attempt } from '../../components/toasts.tsx'
import { useClient, useLiveData } from '../../data/live-context.ts'
import { useLoad } from '../../data/use-load.ts'
import { formatBytes, formatDateTime, safeLine, shortId } from '../../format.ts'
import { type ResourceKind, ResourcePage } from './resource-page.tsx'

const MB = 1024 * 1024

const KIND: ResourceKind<VolumeInfo> = {
  title: 'Volumes',
  noun: 'volume',
  columns: [
    { name: 'Name' },
    { name: 'Used' },
    { name: 'Mounted in', className: 'wide-only' },
    { name: 'Tenant', className: 'wide-only' },
    { name: 'Created', className: 'wide-only' },
  ],
  nameOf: ({ name }) => name,
  cells: (volume) => <VolumeCells volume={volume} />,
  consequence: 'everything in it is deleted. This cannot be undone.',
  empty: (
    <EmptyState title="No volumes yet" command="ringfence volume create models --size 20g">
      A volume is a named directory that outlives sandboxes. To create one from a terminal:
    </EmptyState>
  ),
}

function VolumeCells({ volume }: { readonly volume: VolumeInfo }) {
  const { name, read_only, used_bytes, size_mb, sandboxes, tenant, created_at } = volume
  return (
    <>
      <td>
        {safeLine(name)} {read_only && <span className="dim">read-only</span>}
      </td>
      <td className="nowrap">
        {used_bytes === null ? '?' : formatBytes(used_bytes)} of {formatBytes(size_mb * MB)}
      </td>
      <td className="wide-only">
        {sandboxes.length === 0 ? <span className="dim">–</span> : <MountedIn ids={sandboxes} />}
      </td>
      <td className="wide-only">{safeLine(tenant)}</td>
      <td className="nowrap dim wide-only">{formatDateTime(created_at)}</td>
    </>
  )
}

function MountedIn({ ids }: { readonly ids: readonly string[] }) {
  const { sandboxes } = useLiveData()
  const nameOf = (id: string): string =>
    safeLine(sandboxes.find((one) => one.id === id)?.metadata.name ?? shortId(id))
  return (
    <span className="line">
      {ids.map((id) => (
        <Link key={id} to={`/sandboxes/${id}`}>
          {nameOf(id)}
        </Link>
      ))}
    </span>
  )
}

/** Named directories that outlive sandboxes. */
export function Volumes() {
  const client = useClient()
  const loaded = useLoad('volumes', () => client.volumes())
  const [isCreating, setCreating] = useState(false)
  return (
    <ResourcePage
      kind={KIND}
      loaded={loaded}
      remove={({ id }) => client.removeVolume(id)}
      onCreate={() => setCreating(true)}
    >
      {isCreating && <CreateDialog onClose={() => setCreating(false)} onCreated={loaded.reload} />}
    </ResourcePage>
  )
}

function CreateDialog(props: { readonly onClose: () => void; readonly onCreated: () => void }) {
  const client = useClient()
  const [name, setName] = useState('')
  const [size, setSize] = useState('')
  const create = async (): Promise<void> => {
    const request = { name, ...(size === '' ? {} : { size_mb: Number(size) }) }
    if (!(await attempt(() => client.createVolume(request), 'Volume created'))) return
    props.onClose()
    props.onCreated()
  }
  return (
    <ConfirmDialog
      title="Create volume"
      confirmLabel="Create volume"
      disabled={name === ''}
      onClose={props.onClose}
      onConfirm={create}
    >
      <TextField label="Name" value={name} onChange={setName} autoFocus placeholder="e.g. models" />
      <TextField
        label="Size (MB)"
        type="number"
        min={1}
        step={1}
        value={size}
        onChange={setSize}
        placeholder="default"
        hint="Mount it with ringfence sandbox create --volume NAME:/path[:ro]."
      />
    </ConfirmDialog>
  )
}
