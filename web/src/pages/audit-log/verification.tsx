import { trustNewKey } from '../../audit/pinned-key.ts'
import { OTHER_KEY } from '../../audit/verifier.ts'
import { Button } from '../../components/button.tsx'
import { useIdentity, useLiveData } from '../../data/live-context.ts'
import { formatCount, formatTime } from '../../format.ts'
import { useVerification, type VerificationState } from './use-verification.ts'

/** Verifies the whole audit log in this browser, independently of the server. */
export function Verification() {
  const { operator } = useIdentity()
  if (!operator)
    return (
      <p className="verification dim">
        Only operators can verify the whole audit log. You can verify each of your records.
      </p>
    )
  if (!globalThis.crypto?.subtle)
    return (
      <p className="verification warn-text">
        ! Verification needs WebCrypto, which browsers provide only on HTTPS and localhost.
      </p>
    )
  return <VerificationBar />
}

function VerificationBar() {
  const { state, verify } = useVerification()
  const { seq } = useLiveData()
  const isOtherKey = state.kind === 'done' && !state.verdict.ok && state.verdict.problem.includes(OTHER_KEY)
  const trustAndVerify = (): void => {
    trustNewKey()
    void verify()
  }
  return (
    <div className="verification">
      <Button onClick={() => void verify()} disabled={state.kind === 'checking'}>
        {state.kind === 'done' ? 'Verify again' : 'Verify in this browser'}
      </Button>
      <VerificationResult state={state} newest={seq} />
      {isOtherKey && (
        <Button tone="danger" onClick={trustAndVerify}>
          Trust the new key
        </Button>
      )}
    </div>
  )
}

function VerificationResult({
  state,
  newest,
}: {
  readonly state: VerificationState
  readonly newest: number
}) {
  switch (state.kind) {
    case 'idle':
      return <span className="dim">Recomputes every hash, the Merkle root and every signature locally</span>
    case 'failed':
      return <Problem text={state.error} />
    case 'checking':
      return (
        <span className="line" role="status">
          <progress max={Math.max(1, state.total)} value={state.done} aria-label="Records verified" />
          <span className="num">
            {formatCount(state.done)} of {formatCount(state.total)}
          </span>
        </span>
      )
    case 'done':
      if (!state.verdict.ok)
        return <Problem text={`Record #${state.verdict.seq}: ${state.verdict.problem}`} />
      return <Verified state={state} newest={newest} />
  }
}

const Problem = ({ text }: { readonly text: string }) => (
  <span className="bad-text" role="status">
    ✕ {text}
  </span>
)

type Done = Extract<VerificationState, { kind: 'done' }>

function Verified({ state, newest }: { readonly state: Done; readonly newest: number }) {
  const { verdict, key, at } = state
  if (!verdict.ok) return null
  const newer = newest + 1 - verdict.records
  return (
    <span role="status">
      <span className="good-text">✓ Verified: </span>
      {formatCount(verdict.records)} records, {formatCount(verdict.checkpoints)} checkpoints, signed head
      <span className="dim">
        {' '}
        · key {key.slice(0, 8)} · at {formatTime(at)}
        {newer > 0 ? ` · ${formatCount(newer)} newer since` : ''}
      </span>
    </span>
  )
}
