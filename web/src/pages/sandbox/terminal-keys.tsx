/** Keys that the keyboards of phones lack. */
const KEYS = [
  ['Esc', '\x1b'],
  ['Tab', '\t'],
  ['↑', '\x1b[A'],
  ['↓', '\x1b[B'],
  ['←', '\x1b[D'],
  ['→', '\x1b[C'],
] as const
const NAMES: Readonly<Record<string, string>> = { '↑': 'Up', '↓': 'Down', '←': 'Left', '→': 'Right' }

/** A row of keys below a terminal; Ctrl applies to the next key that is typed. */
export function TerminalKeys(props: {
  readonly isCtrlDown: boolean
  readonly onCtrl: () => void
  readonly onKey: (text: string) => void
}) {
  // The terminal keeps the focus, so that the phone's keyboard stays open.
  const keepFocus = (event: React.PointerEvent): void => event.preventDefault()
  return (
    <div className="terminal-keys" role="toolbar" aria-label="Terminal keys" onPointerDown={keepFocus}>
      <button type="button" className="button" aria-pressed={props.isCtrlDown} onClick={props.onCtrl}>
        Ctrl
      </button>
      {KEYS.map(([key, text]) => (
        <button
          key={key}
          type="button"
          className="button"
          aria-label={NAMES[key] ?? key}
          onClick={() => props.onKey(text)}
        >
          {key}
        </button>
      ))}
    </div>
  )
}

/** The character that a terminal sends for Ctrl and a key: `c` is 0x03. */
export const withCtrl = (text: string): string =>
  /^[@-_a-z]$/.test(text) ? String.fromCharCode(text.toUpperCase().charCodeAt(0) & 0x1f) : text
