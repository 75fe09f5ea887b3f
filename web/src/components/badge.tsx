/** Each state and decision with a symbol, so that color never carries the meaning alone. */
const SYMBOLS: Readonly<Record<string, readonly [symbol: string, tone: string]>> = {
  waiting: ['◌', 'dim'],
  building: ['▶', 'accent'],
  requested: ['◌', 'dim'],
  provisioning: ['◌', 'accent'],
  ready: ['●', 'good'],
  executing: ['▶', 'accent'],
  running: ['▶', 'accent'],
  'needs approval': ['?', 'warn'],
  'awaiting approval': ['?', 'warn'],
  paused: ['‖', 'warn'],
  destroying: ['◍', 'dim'],
  destroyed: ['○', 'dim'],
  failed: ['✕', 'bad'],
  started: ['▶', 'accent'],
  ended: ['○', 'dim'],
  refused: ['✕', 'bad'],
  unfinished: ['◌', 'warn'],
  pending: ['?', 'warn'],
  approved: ['✓', 'good'],
  rejected: ['✕', 'bad'],
  applying: ['◌', 'accent'],
  applied: ['✓', 'good'],
  dropped: ['○', 'dim'],
  expired: ['◷', 'dim'],
  deny: ['✕', 'bad'],
  block: ['✕', 'bad'],
  ask: ['?', 'warn'],
  sandbox: ['▣', 'accent'],
  allow: ['✓', 'good'],
  error: ['✕', 'bad'],
  critical: ['✕', 'bad'],
  warning: ['!', 'warn'],
  info: ['i', 'dim'],
  up: ['●', 'good'],
  lost: ['✕', 'bad'],
  left: ['○', 'dim'],
  failing: ['!', 'warn'],
  available: ['●', 'good'],
  unavailable: ['✕', 'dim'],
  missing: ['✕', 'bad'],
  changed: ['!', 'warn'],
  unchanged: ['✓', 'good'],
  revoked: ['✕', 'dim'],
  active: ['●', 'good'],
}

/** A state, decision or severity. */
export function Badge({ word, title }: { readonly word: string; readonly title?: string }) {
  const [symbol, tone] = SYMBOLS[word] ?? ['·', 'dim']
  return (
    <span className={`badge ${tone}`} title={title}>
      <span aria-hidden="true">{symbol}</span> {word}
    </span>
  )
}

/** The id of a policy rule. */
export const RuleTag = ({ rule }: { readonly rule: string }) => <code className="rule">{rule}</code>
