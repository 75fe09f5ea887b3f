import { useState } from 'react'
import type { KeyInfo } from '../../../../src/client/types.ts'
import { ConfirmDialog } from '../../components/confirm-dialog.tsx'
import { Checkbox, TextField } from '../../components/fields.tsx'
import { attempt } from '../../components/toasts.tsx'
import { useClient, useIdentity } from '../../data/live-context.ts'
import { safeLine } from '../../format.ts'

const SCOPES = [
  ['create', 'create, pause and destroy sandboxes'],
  ['exec', 'run commands, open terminals, write files'],
  ['read', 'view sandboxes and records'],
  ['admin', 'operator: all tenants, approvals, policy, keys'],
] as const

export function CreateKeyDialog(props: {
  readonly onClose: () => void
  readonly onCreated: (secret: string) => void
}) {
  const client = useClient()
  const [name, setName] = useState('')
  const [tenant, setTenant] = useState('')
  const [scopes, setScopes] = useState<readonly string[]>(['create', 'exec', 'read'])
  const [e2b, setE2b] = useState(false)
  const create = async (): Promise<void> => {
    const request = { name, scopes, e2b, ...(tenant ? { tenant } : {}) }
    await attempt(async () => props.onCreated((await client.createKey(request)).key))
  }
  return (
    <ConfirmDialog
      title="Create API key"
      confirmLabel="Create key"
      disabled={scopes.length === 0}
      onClose={props.onClose}
      onConfirm={create}
    >
      <TextField label="Name" value={name} onChange={setName} autoFocus placeholder="e.g. ci-pipeline" />
      <TextField
        label="Tenant"
        value={tenant}
        onChange={setTenant}
        placeholder="default"
        hint="A key can access only the sandboxes of its tenant."
      />
      <ScopeFields scopes={scopes} onChange={setScopes} />
      <Checkbox checked={e2b} onChange={() => setE2b(!e2b)}>
        E2B-compatible format, for E2B SDKs
      </Checkbox>
    </ConfirmDialog>
  )
}

function ScopeFields(props: {
  readonly scopes: readonly string[]
  readonly onChange: (scopes: readonly string[]) => void
}) {
  const { scopes } = props
  const toggle = (scope: string): void =>
    props.onChange(scopes.includes(scope) ? scopes.filter((other) => other !== scope) : [...scopes, scope])
  return (
    <fieldset>
      <legend>Scopes</legend>
      {SCOPES.map(([scope, description]) => (
        <Checkbox key={scope} checked={scopes.includes(scope)} onChange={() => toggle(scope)}>
          <strong>{scope}</strong> <span className="dim">{description}</span>
        </Checkbox>
      ))}
    </fieldset>
  )
}

export function RevokeKeyDialog(props: {
  readonly apiKey: KeyInfo
  readonly onClose: () => void
  readonly onRevoked: () => void
}) {
  const { apiKey: key, onClose } = props
  const client = useClient()
  const { key_id } = useIdentity()
  const revoke = async (): Promise<void> => {
    if (!(await attempt(() => client.revokeKey(key.id), 'Key revoked'))) return
    onClose()
    props.onRevoked()
  }
  return (
    <ConfirmDialog
      title="Revoke this key?"
      confirmLabel="Revoke"
      tone="danger"
      onClose={onClose}
      onConfirm={revoke}
    >
      <p>
        <strong>{key.name ? safeLine(key.name) : key.id}</strong> stops working at once. Clients and console
        sessions that use it are disconnected{key.id === key_id ? ', including yours' : ''}. This cannot be
        undone.
      </p>
    </ConfirmDialog>
  )
}
