import { useEffect, useState } from 'react'
import type { PolicyCheck } from '../../../src/client/console-types.ts'
import { useClient } from './live-context.ts'

const DEBOUNCE_MS = 300

/** Validates a policy text on the server shortly after the last edit; undefined until the first result. */
export function usePolicyCheck(text: string | undefined): PolicyCheck | undefined {
  const client = useClient()
  const [result, setResult] = useState<PolicyCheck | undefined>(undefined)
  useEffect(() => {
    if (text === undefined) return
    let cancelled = false
    const timer = setTimeout(() => {
      client.checkPolicy(text).then(
        (check) => !cancelled && setResult(check),
        (error: Error) => !cancelled && setResult({ ok: false, problem: error.message }),
      )
    }, DEBOUNCE_MS)
    return () => {
      cancelled = true
      clearTimeout(timer)
    }
  }, [client, text])
  return result
}
