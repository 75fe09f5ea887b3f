import { useState } from 'react'
import type { KeyInfo } from '../../../src/client/types.ts'
import { Confirm, Dialog } from '../dialog.tsx'
import { Field } from '../fields.tsx'
import { moment, oneLine } from '../format.ts'
import { useClient, useLive } from '../live.ts'
import { useLoad } from '../load.ts'
import { attempt } from '../messages.tsx'
import { Badge, Button, Code, Empty, Page, Panel, ScrollX } from '../ui.tsx'

const SCOPES = [
  ['create', 'make, pause and end sandboxes'],
  ['exec', 'run commands, open terminals, write files'],
  ['read', 'look'],
  ['admin', 'the operator: every tenant, answers, policy, keys'],
] as const

/** Who may come in. A key is shown once, when it is made. */
export function Keys() {
  const client = useClient()
  const { who } = useLive()
  const { value, error, again } = useLoad('keys', () => client.keys())
  const [making, setMaking] = useState(false)
  const [shown, setShown] = useState<
    { readonly title: string; readonly text: string; readonly note: string } | undefined
  >(undefined)
  const [revoking, setRevoking] = useState<KeyInfo | undefined>(undefined)
  const link = (key: KeyInfo): void =>
    void attempt(async () => {
      const { path } = await client.newLink(key.id)
      setShown({
        title: 'A sign-in link, shown once',
        text: `${location.origin}${path}`,
        note: 'It signs somebody in once, within ten minutes, as this key.',
      })
    })
  return (
    <Page
      title="Keys"
      aside={
        <Button tone="main" onClick={() => setMaking(true)}>
          Make a key…
        </Button>
      }
    >
      {error && (
        <p role="alert" className="problem">
          ✕ {error}
        </p>
      )}
      <Panel title="Keys">
        {value?.items.length === 0 ? (
          <Empty title="No key yet" command="ringfence key create">
            Programs come in with a key:
          </Empty>
        ) : (
          <ScrollX label="Keys">
            <table>
              <thead>
                <tr>
                  <th scope="col">State</th>
                  <th scope="col">Name</th>
                  <th scope="col" className="roomy">
                    Starts with
                  </th>
                  <th scope="col">Scopes</th>
                  <th scope="col">Tenant</th>
                  <th scope="col" className="roomy">
                    Made
                  </th>
                  <th scope="col">
                    <span className="hidden">Actions</span>
                  </th>
                </tr>
              </thead>
              <tbody>
                {value?.items.map((key) => (
                  <tr key={key.id} className={key.revoked_at ? 'over' : ''}>
                    <td>
                      <Badge word={key.revoked_at ? 'revoked' : 'active'} />
                    </td>
                    <td>
                      {key.name ? oneLine(key.name) : <span className="dim">–</span>}
                      {key.id === who.key_id && <span className="dim"> (you)</span>}
                    </td>
                    <td className="mono roomy">{oneLine(key.start)}…</td>
                    <td>{key.scopes.join(', ')}</td>
                    <td>{oneLine(key.tenant)}</td>
                    <td className="nowrap dim roomy">{moment(key.created_at)}</td>
                    <td className="row-actions">
                      {!key.revoked_at && (
                        <>
                          <Button onClick={() => link(key)}>Sign-in link</Button>
                          <Button tone="bad" onClick={() => setRevoking(key)}>
                            Revoke…
                          </Button>
                        </>
                      )}
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
          </ScrollX>
        )}
      </Panel>
      {making && (
        <MakeKey
          onClose={() => setMaking(false)}
          onMade={(secret) => {
            setMaking(false)
            again()
            setShown({
              title: 'The key, shown once',
              text: secret,
              note: 'Only its hash is kept. Copy it now; nobody can show it again.',
            })
          }}
        />
      )}
      {shown && (
        <Dialog title={shown.title} onClose={() => setShown(undefined)}>
          <Code text={shown.text} />
          <p className="dim">{shown.note}</p>
          <div className="buttons">
            <Button onClick={() => setShown(undefined)} tone="main">
              I have it
            </Button>
          </div>
        </Dialog>
      )}
      {revoking && (
        <Confirm
          title="Revoke this key?"
          yes="Revoke"
          tone="bad"
          onClose={() => setRevoking(undefined)}
          onYes={async () => {
            if (await attempt(() => client.revokeKey(revoking.id), 'It opens nothing any more')) {
              setRevoking(undefined)
              again()
            }
          }}
        >
          <p>
            {revoking.name ? oneLine(revoking.name) : revoking.id}: whoever uses it is out at once, and so is
            everybody who signed in with it
            {revoking.id === who.key_id ? ', you among them' : ''}. This cannot be taken back.
          </p>
        </Confirm>
      )}
    </Page>
  )
}

function MakeKey({
  onClose,
  onMade,
}: {
  readonly onClose: () => void
  readonly onMade: (secret: string) => void
}) {
  const client = useClient()
  const [name, setName] = useState('')
  const [tenant, setTenant] = useState('')
  const [scopes, setScopes] = useState<readonly string[]>(['create', 'exec', 'read'])
  const [e2b, setE2b] = useState(false)
  const toggle = (scope: string): void =>
    setScopes(scopes.includes(scope) ? scopes.filter((one) => one !== scope) : [...scopes, scope])
  return (
    <Confirm
      title="Make a key"
      yes="Make it"
      disabled={scopes.length === 0}
      onClose={onClose}
      onYes={async () => {
        await attempt(async () =>
          onMade((await client.createKey({ name, scopes, e2b, ...(tenant ? { tenant } : {}) })).key),
        )
      }}
    >
      <Field label="Name" value={name} onChange={setName} autoFocus placeholder="what it is for" />
      <Field
        label="Tenant"
        value={tenant}
        onChange={setTenant}
        placeholder="default"
        hint="Keys of one tenant see its sandboxes and no others."
      />
      <fieldset>
        <legend>It may</legend>
        {SCOPES.map(([scope, means]) => (
          <label key={scope} className="check">
            <input type="checkbox" checked={scopes.includes(scope)} onChange={() => toggle(scope)} />
            <span>
              <strong>{scope}</strong> <span className="dim">{means}</span>
            </span>
          </label>
        ))}
      </fieldset>
      <label className="check">
        <input type="checkbox" checked={e2b} onChange={() => setE2b(!e2b)} />
        <span>in the form that E2B's clients insist on</span>
      </label>
    </Confirm>
  )
}
