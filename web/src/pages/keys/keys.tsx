import { useState } from 'react'
import type { KeyInfo } from '../../../../src/client/types.ts'
import { Button } from '../../components/button.tsx'
import { ErrorMessage, Loading, Page } from '../../components/page.tsx'
import { Panel } from '../../components/panel.tsx'
import { type Secret, SecretDialog } from '../../components/secret-dialog.tsx'
import { attempt } from '../../components/toasts.tsx'
import { useClient } from '../../data/live-context.ts'
import { useLoad } from '../../data/use-load.ts'
import { CreateKeyDialog, RevokeKeyDialog } from './key-dialogs.tsx'
import { KeyTable } from './key-table.tsx'

type Dialog =
  | { readonly kind: 'create' }
  | { readonly kind: 'secret'; readonly secret: Secret }
  | { readonly kind: 'revoke'; readonly key: KeyInfo }

/** API keys. A key's secret is shown once, when it is created. */
export function Keys() {
  const client = useClient()
  const { value, error, reload } = useLoad('keys', () => client.keys())
  const [dialog, setDialog] = useState<Dialog | undefined>(undefined)
  const close = (): void => setDialog(undefined)
  const createLink = (key: KeyInfo): void =>
    void attempt(async () => {
      const { path } = await client.newLink(key.id)
      setDialog({ kind: 'secret', secret: { kind: 'link', text: `${location.origin}${path}` } })
    })
  const showKey = (text: string): void => {
    reload()
    setDialog({ kind: 'secret', secret: { kind: 'key', text } })
  }
  return (
    <Page
      title="Keys"
      aside={
        <Button tone="primary" onClick={() => setDialog({ kind: 'create' })}>
          Create key…
        </Button>
      }
    >
      <ErrorMessage text={error} />
      <Panel title="API keys">
        {value ? (
          <KeyTable
            keys={value.items}
            onCreateLink={createLink}
            onRevoke={(key) => setDialog({ kind: 'revoke', key })}
          />
        ) : (
          <Loading />
        )}
      </Panel>
      {dialog?.kind === 'create' && <CreateKeyDialog onClose={close} onCreated={showKey} />}
      {dialog?.kind === 'secret' && <SecretDialog secret={dialog.secret} onClose={close} />}
      {dialog?.kind === 'revoke' && (
        <RevokeKeyDialog apiKey={dialog.key} onClose={close} onRevoked={reload} />
      )}
    </Page>
  )
}
