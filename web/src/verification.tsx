import { useEffect, useRef, useState } from 'react'
import { clock, count } from './format.ts'
import { useClient, useLive, useSnapshot } from './live.ts'
import { pinnedKey, trustAnew } from './pinned-key.ts'
import { said } from './session.ts'
import { Button } from './ui.tsx'
import { BrowserVerifier, type TrailVerdict } from './verify.ts'

const PAGE = 2000

type State =
  | { readonly kind: 'idle' }
  | { readonly kind: 'checking'; readonly done: number; readonly all: number }
  | { readonly kind: 'done'; readonly verdict: TrailVerdict; readonly at: string; readonly key: string }
  | { readonly kind: 'cannot'; readonly why: string }

/** The whole trail, recomputed here: hashes, chain, Merkle root and signatures. */
export function Verification() {
  const client = useClient()
  const { who } = useLive()
  const { seq } = useSnapshot()
  const [state, setState] = useState<State>({ kind: 'idle' })
  const over = useRef(false)
  useEffect(() => {
    over.current = false
    return () => {
      over.current = true
    }
  }, [])
  const verify = async (): Promise<void> => {
    try {
      const trusted = await pinnedKey(client)
      const { head } = await client.trailHead()
      const verifier = new BrowserVerifier(trusted)
      setState({ kind: 'checking', done: 0, all: head.count })
      let verdict: TrailVerdict | undefined
      while (verifier.progress.records < head.count && !verdict && !over.current) {
        const lines = await client.trailLines(
          verifier.progress.records - 1,
          Math.min(PAGE, head.count - verifier.progress.records),
        )
        if (lines.length === 0) break
        verdict = await verifier.push(lines)
        setState({ kind: 'checking', done: verifier.progress.records, all: head.count })
      }
      if (over.current) return
      setState({
        kind: 'done',
        verdict: verdict ?? (await verifier.conclude(head)),
        at: new Date().toISOString(),
        key: trusted.id,
      })
    } catch (error) {
      setState({ kind: 'cannot', why: said(error) })
    }
  }
  if (!who.operator)
    return (
      <p className="verification dim">
        The whole trail is the operator's; each of your records can be proven on its own.
      </p>
    )
  if (!globalThis.crypto?.subtle)
    return (
      <p className="verification warn-text">
        ! This browser offers no cryptography on this address; use https or localhost.
      </p>
    )
  return (
    <div className="verification">
      <Button onClick={() => void verify()} disabled={state.kind === 'checking'}>
        {state.kind === 'done' ? 'Verify again' : 'Verify in this browser'}
      </Button>
      <Said state={state} newest={seq} />
      {state.kind === 'done' && !state.verdict.ok && /another key/.test(state.verdict.problem) && (
        <Button
          tone="bad"
          onClick={() => {
            trustAnew()
            void verify()
          }}
        >
          I know why the key changed
        </Button>
      )}
    </div>
  )
}

function Said({ state, newest }: { readonly state: State; readonly newest: number }) {
  if (state.kind === 'idle')
    return (
      <span className="dim">
        recomputes every hash, the chain, the Merkle root and each signature, here and not on the server
      </span>
    )
  if (state.kind === 'cannot')
    return (
      <span className="bad-text" role="status">
        ✕ {state.why}
      </span>
    )
  if (state.kind === 'checking')
    return (
      <span className="line" role="status">
        <progress max={Math.max(1, state.all)} value={state.done} aria-label="Records checked" />
        <span className="num">
          {count(state.done)} of {count(state.all)}
        </span>
      </span>
    )
  const { verdict } = state
  if (!verdict.ok)
    return (
      <span className="bad-text" role="status">
        ✕ record #{verdict.seq}: {verdict.problem}
      </span>
    )
  const later = newest + 1 - verdict.records
  return (
    <span role="status">
      <span className="good-text">✓ intact: </span>
      {count(verdict.records)} records, {count(verdict.checkpoints)} checkpoints and the signed head
      <span className="dim">
        {' '}
        · key {state.key.slice(0, 8)} · at {clock(state.at)}
        {later > 0 ? ` · ${count(later)} newer since` : ''}
      </span>
    </span>
  )
}
