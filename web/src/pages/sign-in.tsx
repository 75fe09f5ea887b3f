import { useState } from 'react'
import type { ConsoleClient } from '../../../src/client/console.ts'
import { Field } from '../fields.tsx'
import { enterByKey, said } from '../session.ts'
import { Button, Code } from '../ui.tsx'

/** The way in for whoever has no link: a key, and where a link comes from. */
export function SignIn(props: {
  readonly problem?: string | undefined
  readonly onEntered: (client: ConsoleClient) => void
}) {
  const [key, setKey] = useState('')
  const [problem, setProblem] = useState(props.problem)
  const [busy, setBusy] = useState(false)
  const enter = async (): Promise<void> => {
    setBusy(true)
    try {
      props.onEntered(await enterByKey(key.trim()))
    } catch (error) {
      setProblem(said(error))
      setBusy(false)
    }
  }
  return (
    <main className="sign-in">
      <img src="/console/mark.svg" alt="" width={40} height={40} />
      <h1>Ringfence</h1>
      <p>See what every agent is doing, and decide.</p>
      {problem && (
        <p className="problem" role="alert">
          <span aria-hidden="true">✕ </span>
          {problem}
        </p>
      )}
      <form
        onSubmit={(event) => {
          event.preventDefault()
          void enter()
        }}
      >
        <Field
          label="API key"
          type="password"
          value={key}
          onChange={setKey}
          mono
          autoFocus
          placeholder="rf_…"
          hint="You will see and do what this key may see and do."
        />
        <Button onClick={() => {}} submit tone="main" disabled={busy || key.trim() === ''}>
          Sign in
        </Button>
      </form>
      <div className="other-way">
        <p>Or open the one-time link that the server prints when it starts:</p>
        <Code text="ringfence serve" />
      </div>
    </main>
  )
}
