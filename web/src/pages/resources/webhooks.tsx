import { useState } from 'react'
import type { WebhookInfo } from '../../../../src/client/types.ts'
import { EVENT_NAMES } from '../../../../src/model/event.ts'
import { Badge } from '../../components/badge.tsx'
import { ConfirmDialog } from '../../components/confirm-dialog.tsx'
import { EmptyState } from '../../components/empty-state.tsx'
import { Checkbox, TextField } from '../../components/fields.tsx'
import { SecretDialog } from '../../components/secret-dialog.tsx'
import { attempt } from '../../components/toasts.tsx'
import { useClient } from '../../data/live-context.ts'
import { useLoad } from '../../data/use-load.ts'
import { plural, safeLine } from '../../format.ts'
import { type ResourceKind, ResourcePage } from './resource-page.tsx'

const KIND: ResourceKind<WebhookInfo> = {
  title: 'Webhooks',
  noun: 'webhook',
  columns: [{ name: 'State' }, { name: 'URL' }, { name: 'Events', className: 'wide-only' }],
  nameOf: ({ url }) => url,
  cells: ({ url, events, failures }) => (
    <>
      <td className="nowrap">
        {failures === 0 ? (
          <Badge word="active" />
        ) : (
          <Badge word="failed" title={`${plural(failures, 'failed delivery attempt')} in a row`} />
        )}
      </td>
      <td className="mono wrap">{safeLine(url)}</td>
      <td className="wide-only">{events.length === 0 ? 'all' : events.join(', ')}</td>
    </>
  ),
  consequence: 'it receives no more records. Records that were not delivered yet stay in the audit log.',
  empty: (
    <EmptyState title="No webhooks yet" command="ringfence webhook create https://example.com/hook">
      A webhook receives new records of the audit log, signed. To create one from a terminal:
    </EmptyState>
  ),
}

/** URLs that receive records of the audit log. */
export function Webhooks() {
  const client = useClient()
  const loaded = useLoad('webhooks', () => client.webhooks())
  const [dialog, setDialog] = useState<'create' | { readonly secret: string } | undefined>(undefined)
  const close = (): void => setDialog(undefined)
  const showSecret = (secret: string): void => {
    loaded.reload()
    setDialog({ secret })
  }
  return (
    <ResourcePage
      kind={KIND}
      loaded={loaded}
      remove={({ id }) => client.removeWebhook(id)}
      onCreate={() => setDialog('create')}
    >
      {dialog === 'create' && <CreateDialog onClose={close} onCreated={showSecret} />}
      {typeof dialog === 'object' && (
        <SecretDialog secret={{ kind: 'webhook', text: dialog.secret }} onClose={close} />
      )}
    </ResourcePage>
  )
}

function CreateDialog(props: { readonly onClose: () => void; readonly onCreated: (secret: string) => void }) {
  const client = useClient()
  const [url, setUrl] = useState('')
  const [events, setEvents] = useState<readonly string[]>([])
  const toggle = (name: string): void =>
    setEvents(events.includes(name) ? events.filter((other) => other !== name) : [...events, name])
  const create = async (): Promise<void> => {
    await attempt(async () => props.onCreated((await client.createWebhook({ url, events })).secret))
  }
  return (
    <ConfirmDialog
      title="Create webhook"
      confirmLabel="Create webhook"
      disabled={url === ''}
      onClose={props.onClose}
      onConfirm={create}
    >
      <TextField
        label="URL"
        mono
        value={url}
        onChange={setUrl}
        autoFocus
        placeholder="https://example.com/hook"
      />
      <fieldset>
        <legend>Events (none selected: all)</legend>
        <div className="check-grid">
          {EVENT_NAMES.map((name) => (
            <Checkbox key={name} checked={events.includes(name)} onChange={() => toggle(name)}>
              {name}
            </Checkbox>
          ))}
        </div>
      </fieldset>
    </ConfirmDialog>
  )
}
