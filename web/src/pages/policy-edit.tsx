import { useEffect, useState } from 'react'
import type { PolicyCheck, PolicyView, Suggestion } from '../../../src/client/console-types.ts'
import { Confirm } from '../dialog.tsx'
import { DiffView } from '../diff-view.tsx'
import { Field } from '../fields.tsx'
import { counted, plain } from '../format.ts'
import { useClient } from '../live.ts'
import { useLoad } from '../load.ts'
import { attempt } from '../messages.tsx'
import { Button, Empty, Link, Panel } from '../ui.tsx'

const CHECK_MS = 300

const START = `# What agents may do on this server. Unknown keys are errors; a text that does not load is not saved.

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

/** Checks a text a moment after the last key. */
function useCheck(text: string): PolicyCheck | undefined {
  const client = useClient()
  const [found, setFound] = useState<PolicyCheck | undefined>(undefined)
  useEffect(() => {
    let over = false
    const timer = setTimeout(() => {
      client.checkPolicy(text).then(
        (check) => !over && setFound(check),
        (error: Error) => !over && setFound({ ok: false, problem: error.message }),
      )
    }, CHECK_MS)
    return () => {
      over = true
      clearTimeout(timer)
    }
  }, [client, text])
  return found
}

export function PolicyEdit({
  policy,
  onSaved,
}: {
  readonly policy: PolicyView
  readonly onSaved: () => void
}) {
  const before = policy.text ?? ''
  const [text, setText] = useState(before)
  const [asking, setAsking] = useState(false)
  const check = useCheck(text)
  const lies = check?.ok ? check.examples.filter(({ holds }) => !holds) : []
  return (
    <div className="split policy-edit">
      <Panel
        title={<span className="mono">{policy.file}</span>}
        aside={
          <span className="line">
            {text === '' && <Button onClick={() => setText(START)}>Start with an example</Button>}
            <Button tone="quiet" disabled={text === before} onClick={() => setText(before)}>
              Drop changes
            </Button>
            <Button tone="main" disabled={text === before || !check?.ok} onClick={() => setAsking(true)}>
              Look at the change…
            </Button>
          </span>
        }
      >
        <Field
          label="The policy file"
          hideLabel
          mono
          lines={26}
          value={text}
          onChange={setText}
          placeholder="# empty: the built-in policy"
        />
      </Panel>
      <Panel title="What it comes to">
        <div role="status">
          {check === undefined && <p className="dim">checking…</p>}
          {check && !check.ok && (
            <p className="problem">
              <span aria-hidden="true">✕ </span>
              {plain(check.problem)}
              {check.hint && <span className="dim"> {plain(check.hint)}</span>}
            </p>
          )}
          {check?.ok && (
            <p className="good-text">
              ✓ it loads: {counted(check.rules, 'rule')}, {counted(check.examples.length, 'example')}
              {lies.length === 0 ? ', all true' : ''}
            </p>
          )}
        </div>
        {check?.ok && (
          <ul className="checks">
            {check.examples.map(({ rule, list, line, holds }) => (
              <li key={`${rule}${list}${line}`}>
                <span className={holds ? 'good-text' : 'bad-text'}>{holds ? '✓' : '✕'}</span>{' '}
                <code>{plain(line)}</code>{' '}
                <span className="dim">
                  {list === 'match' ? 'matches' : 'does not match'} {rule}
                </span>
              </li>
            ))}
          </ul>
        )}
        <p className="dim">
          Every rule may bring <code>match</code> and <code>not_match</code> examples; a policy whose examples
          lie does not load. Nothing here relaxes a hard deny.
        </p>
      </Panel>
      {asking && <Save text={text} policy={policy} onClose={() => setAsking(false)} onSaved={onSaved} />}
    </div>
  )
}

function Save(props: {
  readonly text: string
  readonly policy: PolicyView
  readonly onClose: () => void
  readonly onSaved: () => void
}) {
  const client = useClient()
  const { policy, text } = props
  return (
    <Confirm
      title="Put this policy in force?"
      yes="Save and put in force"
      onClose={props.onClose}
      onYes={async () => {
        if (!(await attempt(() => client.savePolicy(text, policy.base ?? ''), 'The new policy is in force')))
          return
        props.onClose()
        props.onSaved()
      }}
    >
      <DiffView before={policy.text ?? ''} after={text} />
      <p className="dim">
        It holds from the next command on, also in sandboxes that are open. If anything is wrong with it,
        nothing changes.
      </p>
    </Confirm>
  )
}

/** Adds lines to a policy text; `[network]` is merged by hand, because a table may stand only once. */
export function withSuggestion(text: string, { kind, toml }: Suggestion): string {
  const host = /"([^"]+)"/.exec(toml)?.[1]
  if (kind === 'host' && host !== undefined && /^\s*allow_hosts\s*=\s*\[/m.test(text))
    return text.replace(/^(\s*allow_hosts\s*=\s*\[)/m, `$1${JSON.stringify(host)}, `)
  if (kind === 'host' && host !== undefined && /^\[network\]/m.test(text))
    return text.replace(/^\[network\].*$/m, (line) => `${line}\nallow_hosts = [${JSON.stringify(host)}]`)
  return `${text}${text === '' || text.endsWith('\n') ? '' : '\n'}${text === '' ? '' : '\n'}${toml}\n`
}

/** What people's answers and refused hosts suggest. Nothing is taken over by itself. */
export function Suggestions({
  policy,
  onSaved,
}: {
  readonly policy: PolicyView | undefined
  readonly onSaved: () => void
}) {
  const client = useClient()
  const { value, error, again } = useLoad('suggestions', () => client.suggestions())
  const [taking, setTaking] = useState<Suggestion | undefined>(undefined)
  return (
    <Panel title="Suggestions from the record">
      {error && (
        <p role="alert" className="problem">
          ✕ {error}
        </p>
      )}
      {value?.length === 0 && (
        <Empty title="Nothing to suggest yet" command="ringfence policy learn -- npm test">
          When people answer the same question the same way again and again, or a host is refused again and
          again, a rule is suggested here. For one command, let a run teach the smallest policy:
        </Empty>
      )}
      <ul className="suggestions">
        {value?.map((one) => (
          <li key={one.toml}>
            <div>
              <strong>{plain(one.title)}</strong>
              <p className="dim">
                {plain(one.why)}:{' '}
                {one.seqs.slice(0, 5).map((seq) => (
                  <Link key={seq} to={`/trail?seq=${seq}`}>
                    #{seq}{' '}
                  </Link>
                ))}
              </p>
              <pre>{plain(one.toml)}</pre>
            </div>
            <Button onClick={() => setTaking(one)} disabled={!policy}>
              Look at the change…
            </Button>
          </li>
        ))}
      </ul>
      {taking && policy && (
        <Save
          text={withSuggestion(policy.text ?? '', taking)}
          policy={policy}
          onClose={() => setTaking(undefined)}
          onSaved={() => {
            onSaved()
            again()
          }}
        />
      )}
    </Panel>
  )
}
