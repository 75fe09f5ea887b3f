import { useState } from 'react'

/** A command or a value with a copy button. */
export function CopyableCode({ text }: { readonly text: string }) {
  const [isCopied, setCopied] = useState(false)
  const copy = (): void => {
    void navigator.clipboard?.writeText(text).then(() => setCopied(true))
  }
  return (
    <div className="code">
      <code>{text}</code>
      <button type="button" className="copy" onClick={copy} aria-label={`Copy ${text}`}>
        {isCopied ? 'Copied' : 'Copy'}
      </button>
    </div>
  )
}
