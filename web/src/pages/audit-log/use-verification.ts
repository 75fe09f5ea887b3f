import { useEffect, useRef, useState } from 'react'
import type { ConsoleClient } from '../../../../src/client/console.ts'
import { pinnedKey } from '../../audit/pinned-key.ts'
import { AuditVerifier, type Verdict } from '../../audit/verifier.ts'
import { errorText } from '../../data/error-text.ts'
import { useClient } from '../../data/live-context.ts'

const PAGE_SIZE = 2000

export type VerificationState =
  | { readonly kind: 'idle' }
  | { readonly kind: 'checking'; readonly done: number; readonly total: number }
  | { readonly kind: 'done'; readonly verdict: Verdict; readonly at: string; readonly key: string }
  | { readonly kind: 'failed'; readonly error: string }

/** Downloads and verifies the whole audit log on demand; stops when the page is left. */
export function useVerification() {
  const client = useClient()
  const [state, setState] = useState<VerificationState>({ kind: 'idle' })
  const isUnmounted = useRef(false)
  useEffect(() => {
    isUnmounted.current = false
    return () => {
      isUnmounted.current = true
    }
  }, [])
  const verify = async (): Promise<void> => {
    try {
      await verifyAll(client, (next) => {
        if (!isUnmounted.current) setState(next)
        return !isUnmounted.current
      })
    } catch (error) {
      setState({ kind: 'failed', error: errorText(error) })
    }
  }
  return { state, verify }
}

/** Reports progress, then the verdict; `report` returns false to stop. */
async function verifyAll(
  client: ConsoleClient,
  report: (state: VerificationState) => boolean,
): Promise<void> {
  const key = await pinnedKey(client)
  const { head } = await client.trailHead()
  const verifier = new AuditVerifier(key)
  let verdict: Verdict | undefined
  while (!verdict && report({ kind: 'checking', done: verifier.progress.records, total: head.count })) {
    const left = head.count - verifier.progress.records
    if (left <= 0) break
    const lines = await client.trailLines(verifier.progress.records - 1, Math.min(PAGE_SIZE, left))
    if (lines.length === 0) break
    verdict = await verifier.push(lines)
  }
  verdict ??= await verifier.conclude(head)
  report({ kind: 'done', verdict, at: new Date().toISOString(), key: key.id })
}
