import { useState } from 'react'
import type { PolicyCheck, PolicyView } from '../../../../src/client/console-types.ts'
import { Button } from '../../components/button.tsx'
import { TextField } from '../../components/fields.tsx'
import { Panel } from '../../components/panel.tsx'
import { usePolicyCheck } from '../../data/use-policy-check.ts'
import { plural, safeText } from '../../format.ts'
import { SavePolicyDialog } from './save-policy-dialog.tsx'

const EXAMPLE_POLICY = `# What agents may do on this server. Unknown keys are errors; an invalid policy is not saved.

[policy]
allow_interactive = false
default_action = "sandbox"

[[policy.rule]]
prefix = ["git", "push"]
action = "ask"
why = "publishes work"
match = ["git push origin main"]
not_match = ["git pull"]
`

/** Edits the policy file, validated while typing. */
export function PolicyEdit(props: { readonly policy: PolicyView; readonly onSaved: () => void }) {
  const { policy } = props
  const saved = policy.text ?? ''
  const [text, setText] = useState(saved)
  const [isReviewing, setReviewing] = useState(false)
  const check = usePolicyCheck(text)
  return (
    <div className="split policy-edit">
      <Panel
        title={<span className="mono">{policy.file}</span>}
        aside={
          <span className="line">
            {text === '' && <Button onClick={() => setText(EXAMPLE_POLICY)}>Insert example</Button>}
            <Button tone="quiet" disabled={text === saved} onClick={() => setText(saved)}>
              Discard changes
            </Button>
            <Button tone="primary" disabled={text === saved || !check?.ok} onClick={() => setReviewing(true)}>
              Review changes…
            </Button>
          </span>
        }
      >
        <TextField
          label="Policy file"
          hideLabel
          mono
          lines={26}
          value={text}
          onChange={setText}
          placeholder="# Empty: only the built-in policy applies"
        />
      </Panel>
      <ValidationPanel check={check} />
      {isReviewing && (
        <SavePolicyDialog
          text={text}
          policy={policy}
          onClose={() => setReviewing(false)}
          onSaved={props.onSaved}
        />
      )}
    </div>
  )
}

function ValidationPanel({ check }: { readonly check: PolicyCheck | undefined }) {
  return (
    <Panel title="Validation">
      <div role="status">
        <ValidationResult check={check} />
      </div>
      {check?.ok && (
        <ul className="checks">
          {check.examples.map(({ rule, list, line, holds }) => (
            <li key={`${rule}${list}${line}`}>
              <span className={holds ? 'good-text' : 'bad-text'}>{holds ? '✓' : '✕'}</span>{' '}
              <code>{safeText(line)}</code>{' '}
              <span className="dim">
                {list === 'match' ? 'matches' : 'does not match'} {rule}
              </span>
            </li>
          ))}
        </ul>
      )}
      <p className="dim">
        Rules can have <code>match</code> and <code>not_match</code> examples. A policy with a failing example
        is invalid. No rule can override a hard deny.
      </p>
    </Panel>
  )
}

function ValidationResult({ check }: { readonly check: PolicyCheck | undefined }) {
  if (check === undefined) return <p className="dim">Checking…</p>
  if (!check.ok)
    return (
      <p className="error">
        <span aria-hidden="true">✕ </span>
        {safeText(check.problem)}
        {check.hint && <span className="dim"> {safeText(check.hint)}</span>}
      </p>
    )
  const allPass = check.examples.every(({ holds }) => holds)
  return (
    <p className="good-text">
      ✓ Valid: {plural(check.rules, 'rule')}, {plural(check.examples.length, 'example')}
      {allPass && check.examples.length > 0 ? ', all pass' : ''}
    </p>
  )
}
