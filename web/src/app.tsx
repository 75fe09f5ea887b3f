import { useCallback, useEffect, useState } from 'react'
import type { ConsoleClient } from '../../src/client/console.ts'
import type { Who } from '../../src/client/console-types.ts'
import { Live, LiveProvider } from './live.ts'
import { SignIn } from './pages/sign-in.tsx'
import { enterByLink, forget, isSignedOut, kept, linkInAddress, said } from './session.ts'
import { Shell } from './shell.tsx'

type State =
  | { readonly kind: 'entering' }
  | { readonly kind: 'outside'; readonly problem?: string }
  | { readonly kind: 'inside'; readonly live: Live }

/** Once for the whole life of the page: a link works only once, and React may mount twice. */
const link = linkInAddress()
const first: Promise<ConsoleClient | undefined> =
  link === undefined ? Promise.resolve(kept()) : enterByLink(link)
const RETRY_MS = 1500

/** Outside: the way in. Inside: the console. */
export function App() {
  const [state, setState] = useState<State>({ kind: 'entering' })
  const begin = useCallback((client: ConsoleClient, who: Who): void => {
    const live = new Live(client, who, (problem) => {
      // Another tab may have signed in anew meanwhile; what it holds is not ours to forget.
      if (kept()?.page === client.page) forget()
      setState({ kind: 'outside', problem })
    })
    void live.run()
    setState({ kind: 'inside', live })
  }, [])
  useEffect(() => {
    let over = false
    const open = async (client: ConsoleClient | undefined): Promise<void> => {
      if (over) return
      if (!client) return setState({ kind: 'outside' })
      try {
        const who = await client.who()
        if (over) return
        begin(client, who)
      } catch (error) {
        if (over) return
        // A server that does not answer is no reason to forget who this is.
        if (!isSignedOut(error)) return void setTimeout(() => void open(client), RETRY_MS)
        forget()
        setState({ kind: 'outside' })
      }
    }
    first.then(open, (error: unknown) => {
      const before = kept()
      if (before) void open(before)
      else setState({ kind: 'outside', problem: said(error) })
    })
    return () => {
      over = true
    }
  }, [begin])
  const inside = (client: ConsoleClient): void => {
    void client.who().then((who) => {
      begin(client, who)
    })
  }
  const leave = (live: Live): void => {
    live.stop()
    forget()
    void live.client.signOut().catch(() => {})
    setState({ kind: 'outside' })
  }
  if (state.kind === 'entering')
    return (
      <div className="entering" role="status">
        Signing in…
      </div>
    )
  if (state.kind === 'outside') return <SignIn problem={state.problem} onEntered={inside} />
  return (
    <LiveProvider value={state.live}>
      <Shell onSignOut={() => leave(state.live)} />
    </LiveProvider>
  )
}
