import { useEffect, useState } from 'react'
import type { Approval } from '../../../src/client/types.ts'
import { Answer, type Way } from '../answer.tsx'
import { CommandTree } from '../command-tree.tsx'
import { Choice } from '../fields.tsx'
import { ago, clock, oneLine, plain, shortId, span } from '../format.ts'
import { useShortcuts } from '../keyboard.ts'
import { useClient, useLive, useSnapshot } from '../live.ts'
import { useLoad, useNow } from '../load.ts'
import { navigate, setParams, useParam } from '../route.ts'
import { Touches } from '../touches.tsx'
import { Badge, Button, Empty, Link, Page, Panel } from '../ui.tsx'

/** Questions to a person: the waiting ones first, then how earlier ones were answered. */
export function Approvals({ id }: { readonly id: string | undefined }) {
  const { approvals, records } = useSnapshot()
  const client = useClient()
  const [state, setState] = useParam('state')
  const settled = records.filter(({ event }) => event === 'Approval').at(-1)?.seq ?? -1
  const past = useLoad(`approvals ${state} ${settled}`, () =>
    client.approvals((state || undefined) as Approval['state']),
  )
  const answered = (past.value?.items ?? []).filter((one) => one.state !== 'pending')
  const all = [...(state === '' || state === 'pending' ? approvals : []), ...answered]
  const chosen = all.find((one) => one.id === id) ?? (id === undefined ? all[0] : undefined)
  const walk = (step: number): void => {
    const at = all.findIndex((one) => one.id === chosen?.id)
    const next = all[Math.max(0, Math.min(all.length - 1, at + step))]
    if (next) navigate(`/approvals/${next.id}${location.search}`, true)
  }
  useShortcuts([
    { keys: 'j, ArrowDown', does: 'next question', run: () => walk(1) },
    { keys: 'k, ArrowUp', does: 'previous question', run: () => walk(-1) },
  ])
  return (
    <Page
      title="Approvals"
      aside={
        <Choice
          label="State"
          hideLabel
          value={state}
          onChange={(next) => setState(next)}
          options={[
            ['', 'all'],
            ['pending', 'waiting'],
            ['approved', 'approved'],
            ['rejected', 'rejected'],
            ['expired', 'expired'],
          ]}
        />
      }
    >
      {all.length === 0 ? (
        <Panel title="Nothing waits for you">
          <Empty
            title="A command that policy wants a person to see appears here at once"
            command={'ringfence sandbox exec SANDBOX -c "git push origin main"'}
          >
            Try one that the built-in policy asks about, in any sandbox:
          </Empty>
          {state !== '' && (
            <Button onClick={() => setParams({ state: '' })} tone="quiet">
              Show all
            </Button>
          )}
        </Panel>
      ) : (
        <div className="split">
          <ApprovalList all={all} chosen={chosen?.id} />
          {chosen ? <Detail key={chosen.id} approval={chosen} /> : <Fetched id={id as string} />}
        </div>
      )}
    </Page>
  )
}

/** One that is not in the list, by its address. */
function Fetched({ id }: { readonly id: string }) {
  const client = useClient()
  const { value, error } = useLoad(`approval ${id}`, () => client.approval(id))
  if (value) return <Detail approval={value} />
  return <Panel title="Question">{error ? <p role="alert">{error}</p> : <p className="dim">…</p>}</Panel>
}

function ApprovalList({
  all,
  chosen,
}: {
  readonly all: readonly Approval[]
  readonly chosen: string | undefined
}) {
  const now = useNow()
  return (
    <ul className="approval-list panel" aria-label="Questions">
      {all.map((one) => (
        <li key={one.id}>
          <Link to={`/approvals/${one.id}${location.search}`} current={one.id === chosen}>
            <code>{oneLine(one.command)}</code>
            <span className="line">
              <Badge word={one.state} />
              <span className="dim">
                {one.agent_id ? oneLine(one.agent_id) : shortId(one.sandbox_id)} ·{' '}
                {one.state === 'pending'
                  ? `${span(Math.max(0, Date.parse(one.expires_at) - now))} left`
                  : `${ago(one.asked_at, now)} ago`}
              </span>
            </span>
          </Link>
        </li>
      ))}
    </ul>
  )
}

function Detail({ approval }: { readonly approval: Approval }) {
  const { who } = useLive()
  const { records } = useSnapshot()
  const now = useNow()
  const [way, setWay] = useState<Way | undefined>(undefined)
  const pending = approval.state === 'pending'
  const mayAnswer = pending && who.operator
  const ask = (next: Way) => (): void => {
    if (mayAnswer) setWay(next)
  }
  useShortcuts([
    { keys: 'a', does: 'approve this question once', run: ask('once') },
    { keys: 'w', does: 'approve it always, with a rule', run: ask('always') },
    { keys: 'r', does: 'reject it with a reason', run: ask('reject') },
  ])
  useEffect(() => {
    if (!pending) setWay(undefined)
  }, [pending])
  const record = [...records]
    .reverse()
    .find((one) => one.event === 'Approval' && one.approval_id === approval.id)
  const left = Math.max(0, Date.parse(approval.expires_at) - now)
  return (
    <article className="approval panel" aria-label="The question">
      <div className="approval-head">
        <Badge word={approval.state} />
        <span className="dim">
          {approval.agent_id ? (
            <>
              agent <strong>{oneLine(approval.agent_id)}</strong>
            </>
          ) : (
            'no agent named'
          )}{' '}
          in <Link to={`/sandboxes/${approval.sandbox_id}`}>{shortId(approval.sandbox_id)}</Link> · asked at{' '}
          {clock(approval.asked_at)}
        </span>
        {pending && (
          <span className={left < 60_000 ? 'left urgent' : 'left'}>{span(left)} left, then it is a no</span>
        )}
      </div>
      <pre className="command">{plain(approval.command)}</pre>
      <p className="cwd dim">
        in <code>{oneLine(approval.cwd)}</code>
      </p>
      <h3>Why you are asked</h3>
      <p className="why">
        <Badge word={approval.decision.action} /> {oneLine(approval.decision.reason)}{' '}
        {approval.decision.rules.map((rule) => (
          <code key={rule} className="rule">
            {rule}
          </code>
        ))}
      </p>
      <CommandTree commands={approval.decision.commands} />
      <h3>What it could touch</h3>
      <Touches approval={approval} />
      {pending ? (
        <div className="answer" role="group" aria-label="Your answer">
          <Button onClick={ask('once')} tone="main" hint="a" disabled={!mayAnswer}>
            Approve once
          </Button>
          <Button onClick={ask('always')} hint="w" disabled={!mayAnswer}>
            Always…
          </Button>
          <Button onClick={ask('reject')} tone="bad" hint="r" disabled={!mayAnswer}>
            Reject…
          </Button>
          {!who.operator && <span className="dim">only a key with the scope admin answers</span>}
        </div>
      ) : (
        <p className="answered" role="status">
          <Badge word={approval.state} />
          {approval.answered_at ? ` at ${clock(approval.answered_at)}` : ''}
          {approval.reason ? `: ${oneLine(approval.reason)}` : ''}
          {record && (
            <>
              {' · '}
              <Link to={`/trail?seq=${record.seq}`}>record #{record.seq}</Link>
            </>
          )}
        </p>
      )}
      {way && <Answer approval={approval} way={way} onClose={() => setWay(undefined)} />}
    </article>
  )
}
