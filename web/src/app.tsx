import { useCallback, useEffect, useState } from 'react'
import type { ConsoleClient } from '../../src/client/console.ts'
import { errorText } from './data/error-text.ts'
import { LiveProvider } from './data/live-context.ts'
import { LiveStore } from './data/live-store.ts'
import {
  clearSession,
  isUnauthenticated,
  signInWithLink,
  storedClient,
  takeLinkFromAddress,
} from './data/session.ts'
import { SignIn } from './pages/sign-in/sign-in.tsx'
import { Shell } from './shell/shell.tsx'

/** The sign-in page, or the console for the signed-in key. */
export function App() {
  const { state, start, signOut } = useSession()
  if (state.kind === 'signing-in')
    return (
      <div className="signing-in" role="status">
        Signing in…
      </div>
    )
  if (state.kind === 'signed-out') return <SignIn problem={state.problem} onSignedIn={start} />
  return (
    <LiveProvider value={state.store}>
      <Shell onSignOut={() => signOut(state.store)} />
    </LiveProvider>
  )
}

type SessionState =
  | { readonly kind: 'signing-in' }
  | { readonly kind: 'signed-out'; readonly problem?: string }
  | { readonly kind: 'signed-in'; readonly store: LiveStore }

/** Started once per page load: a link works only once, and React may mount the component twice. */
const link = takeLinkFromAddress()
const initialClient: Promise<ConsoleClient | undefined> =
  link === undefined ? Promise.resolve(storedClient()) : signInWithLink(link)
const RETRY_MS = 1500

function useSession() {
  const [state, setState] = useState<SessionState>({ kind: 'signing-in' })
  const start = useCallback(
    async (client: ConsoleClient, isCancelled: () => boolean = () => false): Promise<void> => {
      const identity = await client.who()
      if (isCancelled()) return
      const store = new LiveStore(client, identity, (problem) => {
        // Another tab may have signed in again meanwhile; its session stays stored.
        if (storedClient()?.page === client.page) clearSession()
        setState({ kind: 'signed-out', problem })
      })
      void store.run()
      setState({ kind: 'signed-in', store })
    },
    [],
  )
  useEffect(() => resumeSession(start, setState), [start])
  const signOut = (store: LiveStore): void => {
    store.stop()
    clearSession()
    void store.client.signOut().catch(() => {})
    setState({ kind: 'signed-out' })
  }
  return { state, start: (client: ConsoleClient) => void start(client), signOut }
}

/** Signs in with the link in the address or the stored session; returns the cancellation. */
function resumeSession(
  start: (client: ConsoleClient, isCancelled: () => boolean) => Promise<void>,
  setState: (state: SessionState) => void,
): () => void {
  let cancelled = false
  const open = async (client: ConsoleClient | undefined): Promise<void> => {
    if (cancelled) return
    if (!client) return setState({ kind: 'signed-out' })
    try {
      await start(client, () => cancelled)
    } catch (error) {
      if (cancelled) return
      // A server that does not answer is no reason to forget the session.
      if (!isUnauthenticated(error)) return void setTimeout(() => void open(client), RETRY_MS)
      clearSession()
      setState({ kind: 'signed-out' })
    }
  }
  initialClient.then(open, (error: unknown) => {
    const stored = storedClient()
    if (stored) void open(stored)
    else setState({ kind: 'signed-out', problem: errorText(error) })
  })
  return () => {
    cancelled = true
  }
}
