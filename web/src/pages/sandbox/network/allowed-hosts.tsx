import { useState } from 'react'
import type { ConsoleSandbox } from '../../../../../src/client/console-types.ts'
import type { HostVerdict } from '../../../../../src/client/types.ts'
import { Button } from '../../../components/button.tsx'
import { ConfirmDialog } from '../../../components/confirm-dialog.tsx'
import { TextField } from '../../../components/fields.tsx'
import { Panel } from '../../../components/panel.tsx'
import { attempt, showToast } from '../../../components/toasts.tsx'
import { useClient } from '../../../data/live-context.ts'
import { safeLine } from '../../../format.ts'

export function AllowedHosts(props: { readonly sandbox: ConsoleSandbox; readonly onAdd: () => void }) {
  const client = useClient()
  const { id, network } = props.sandbox
  const remove = (host: string): void =>
    void attempt(async () => {
      const rest = network.allow_hosts.filter((other) => other !== host)
      await (await client.get(id)).setAllowHosts(rest)
    }, `${host} removed from the allowed hosts`)
  return (
    <Panel title="Allowed hosts" aside={<Button onClick={props.onAdd}>Allow host…</Button>}>
      <ul className="chips">
        {network.allow_hosts.map((host) => (
          <li key={host}>
            <code>{safeLine(host)}</code>
            <button type="button" className="link" aria-label={`Remove ${host}`} onClick={() => remove(host)}>
              ✕
            </button>
          </li>
        ))}
        {network.allow_hosts.length === 0 && <li className="dim">None. All connections are blocked.</li>}
      </ul>
    </Panel>
  )
}

export function AllowHostDialog(props: {
  readonly sandbox: ConsoleSandbox
  readonly host: string
  readonly onClose: () => void
}) {
  const client = useClient()
  const { id, network } = props.sandbox
  const [input, setInput] = useState(props.host)
  const host = input.trim()
  const allow = async (): Promise<void> => {
    const isSet = await attempt(async () => {
      const hosts = [...new Set([...network.allow_hosts, host])]
      const { hosts: verdicts } = await (await client.get(id)).setAllowHosts(hosts)
      showVerdict(host, verdicts)
    })
    if (isSet) props.onClose()
  }
  return (
    <ConfirmDialog
      title="Allow a host"
      confirmLabel="Allow host"
      disabled={host === ''}
      onClose={props.onClose}
      onConfirm={allow}
    >
      <TextField
        label="Host"
        mono
        value={input}
        onChange={setInput}
        autoFocus
        placeholder="pypi.org or *.example.com"
        hint="Takes effect at once, for this sandbox only. Private and metadata addresses stay blocked."
      />
    </ConfirmDialog>
  )
}

/** A host on the list may still be blocked by the policy, so the server's verdict is shown. */
function showVerdict(host: string, verdicts: readonly HostVerdict[] = []): void {
  const found = verdicts.find((verdict) => verdict.host === host)
  if (found === undefined) showToast(`${host} added to the allowed hosts`)
  else if (found.verdict === 'allow') showToast(`${host}: ${found.reason}`)
  else showToast(`${host} was added but stays blocked: ${found.reason}`, true)
}
