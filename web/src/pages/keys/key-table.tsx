import type { KeyInfo } from '../../../../src/client/types.ts'
import { Badge } from '../../components/badge.tsx'
import { Button } from '../../components/button.tsx'
import { EmptyState } from '../../components/empty-state.tsx'
import { type Column, Table } from '../../components/table.tsx'
import { useIdentity } from '../../data/live-context.ts'
import { formatDateTime, safeLine } from '../../format.ts'

const COLUMNS: readonly Column[] = [
  { name: 'State' },
  { name: 'Name' },
  { name: 'Prefix', className: 'wide-only' },
  { name: 'Scopes' },
  { name: 'Tenant' },
  { name: 'Created', className: 'wide-only' },
  { name: 'Actions', isHidden: true },
]

type KeyActions = {
  readonly onCreateLink: (key: KeyInfo) => void
  readonly onRevoke: (key: KeyInfo) => void
}

export function KeyTable({ keys, ...actions }: { readonly keys: readonly KeyInfo[] } & KeyActions) {
  if (keys.length === 0)
    return (
      <EmptyState title="No keys yet" command="ringfence key create">
        Programs sign in with an API key. To create one from a terminal:
      </EmptyState>
    )
  return (
    <Table label="API keys" columns={COLUMNS}>
      {keys.map((key) => (
        <KeyRow key={key.id} apiKey={key} {...actions} />
      ))}
    </Table>
  )
}

function KeyRow({ apiKey: key, onCreateLink, onRevoke }: { readonly apiKey: KeyInfo } & KeyActions) {
  const { key_id } = useIdentity()
  return (
    <tr className={key.revoked_at ? 'revoked' : ''}>
      <td>
        <Badge word={key.revoked_at ? 'revoked' : 'active'} />
      </td>
      <td>
        {key.name ? safeLine(key.name) : <span className="dim">–</span>}
        {key.id === key_id && <span className="dim"> (you)</span>}
      </td>
      <td className="mono wide-only">{safeLine(key.start)}…</td>
      <td>{key.scopes.join(', ')}</td>
      <td>{safeLine(key.tenant)}</td>
      <td className="nowrap dim wide-only">{formatDateTime(key.created_at)}</td>
      <td className="row-actions">
        {!key.revoked_at && (
          <>
            <Button onClick={() => onCreateLink(key)}>Sign-in link</Button>
            <Button tone="danger" onClick={() => onRevoke(key)}>
              Revoke…
            </Button>
          </>
        )}
      </td>
    </tr>
  )
}
