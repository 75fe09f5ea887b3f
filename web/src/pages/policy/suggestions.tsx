import { useState } from 'react'
import type { PolicyView, Suggestion } from '../../../../src/client/console-types.ts'
import { Button } from '../../components/button.tsx'
import { EmptyState } from '../../components/empty-state.tsx'
import { RecordLink } from '../../components/link.tsx'
import { ErrorMessage } from '../../components/page.tsx'
import { Panel } from '../../components/panel.tsx'
import { useClient } from '../../data/live-context.ts'
import { useLoad } from '../../data/use-load.ts'
import { safeText } from '../../format.ts'
import { SavePolicyDialog } from './save-policy-dialog.tsx'

const MAX_RECORDS = 5

/** Policy changes suggested by the audit log. None is applied without review. */
export function Suggestions(props: {
  readonly policy: PolicyView | undefined
  readonly onSaved: () => void
}) {
  const { policy } = props
  const client = useClient()
  const { value, error, reload } = useLoad('suggestions', () => client.suggestions())
  const [reviewed, setReviewed] = useState<Suggestion | undefined>(undefined)
  const onSaved = (): void => {
    props.onSaved()
    reload()
  }
  return (
    <Panel title="Suggested rules" aside={<span className="dim">From the audit log</span>}>
      <ErrorMessage text={error} />
      {value?.length === 0 && (
        <EmptyState title="No suggestions yet" command="ringfence policy learn -- npm test">
          A rule is suggested when the same command is approved or rejected repeatedly, or the same host is
          blocked repeatedly. To generate a minimal policy from one run:
        </EmptyState>
      )}
      <ul className="suggestions">
        {value?.map((suggestion) => (
          <SuggestionItem
            key={suggestion.toml}
            suggestion={suggestion}
            isDisabled={!policy}
            onReview={() => setReviewed(suggestion)}
          />
        ))}
      </ul>
      {reviewed && policy && (
        <SavePolicyDialog
          text={withSuggestion(policy.text ?? '', reviewed)}
          policy={policy}
          onClose={() => setReviewed(undefined)}
          onSaved={onSaved}
        />
      )}
    </Panel>
  )
}

function SuggestionItem(props: {
  readonly suggestion: Suggestion
  readonly isDisabled: boolean
  readonly onReview: () => void
}) {
  const { title, why, seqs, toml } = props.suggestion
  return (
    <li>
      <div>
        <strong>{safeText(title)}</strong>
        <p className="dim">
          {safeText(why)}:{' '}
          {seqs.slice(0, MAX_RECORDS).map((seq) => (
            <span key={seq}>
              <RecordLink seq={seq} />{' '}
            </span>
          ))}
        </p>
        <pre>{safeText(toml)}</pre>
      </div>
      <Button onClick={props.onReview} disabled={props.isDisabled}>
        Review change…
      </Button>
    </li>
  )
}

/** Adds a suggestion to a policy text. Hosts are merged into `[network]`, because TOML allows a table only once. */
function withSuggestion(text: string, { kind, toml }: Suggestion): string {
  const host = /"([^"]+)"/.exec(toml)?.[1]
  if (kind === 'host' && host !== undefined && /^\s*allow_hosts\s*=\s*\[/m.test(text))
    return text.replace(/^(\s*allow_hosts\s*=\s*\[)/m, `$1${JSON.stringify(host)}, `)
  if (kind === 'host' && host !== undefined && /^\[network\]/m.test(text))
    return text.replace(/^\[network\].*$/m, (line) => `${line}\nallow_hosts = [${JSON.stringify(host)}]`)
  return `${text}${text === '' || text.endsWith('\n') ? '' : '\n'}${text === '' ? '' : '\n'}${toml}\n`
}
