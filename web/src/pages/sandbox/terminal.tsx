import { useState } from 'react'
import { Button } from '../../components/button.tsx'
import { Panel } from '../../components/panel.tsx'
import { TerminalKeys } from './terminal-keys.tsx'
import { type TerminalState, useTerminal } from './use-terminal.ts'

/** An interactive shell in the sandbox. Its output stays on the screen after it ends. */
export function Terminal({ id, isEnded }: { readonly id: string; readonly isEnded: boolean }) {
  const [session, setSession] = useState(0)
  const { box, state, keys } = useTerminal(id, session)
  const isClosed = state.kind === 'exited' || (state.kind === 'disconnected' && state.mayReconnect)
  return (
    <Panel
      title="Terminal"
      className="terminal-panel"
      aside={
        <span className="line" role="status">
          <span className="dim">{stateText(state)}</span>
          {isClosed && !isEnded && <Button onClick={() => setSession(session + 1)}>New session</Button>}
        </span>
      }
    >
      <div className="terminal" ref={box} data-own-keys="" />
      {state.kind === 'open' && <TerminalKeys {...keys} />}
    </Panel>
  )
}

function stateText(state: TerminalState): string {
  switch (state.kind) {
    case 'connecting':
      return 'Connecting…'
    case 'open':
      return 'A shell inside this sandbox'
    case 'exited':
      return `Session ended${state.result ? ` (${state.result})` : ''}`
    case 'disconnected':
      return `Disconnected: ${state.reason || 'connection lost'}`
  }
}
