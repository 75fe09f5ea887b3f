import { Button } from './button.tsx'
import { CopyableCode } from './copyable-code.tsx'
import { Dialog } from './dialog.tsx'

const TEXTS = {
  key: ['API key created', 'Copy the key now. Only its hash is stored, so it cannot be shown again.'],
  link: ['Sign-in link', 'Copy the link now. It signs in once, as this key, within 10 minutes.'],
  webhook: [
    'Webhook created',
    'Copy the secret now. It verifies the signature of each delivery and cannot be shown again.',
  ],
} as const

export type Secret = { readonly kind: keyof typeof TEXTS; readonly text: string }

/** Shows a secret that cannot be shown again. */
export function SecretDialog({ secret, onClose }: { readonly secret: Secret; readonly onClose: () => void }) {
  const [title, note] = TEXTS[secret.kind]
  return (
    <Dialog title={title} onClose={onClose}>
      <CopyableCode text={secret.text} />
      <p className="dim">{note}</p>
      <div className="buttons">
        <Button onClick={onClose} tone="primary">
          Done
        </Button>
      </div>
    </Dialog>
  )
}
