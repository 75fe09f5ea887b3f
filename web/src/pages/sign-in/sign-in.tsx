import { type FormEvent, useState } from 'react'
import type { ConsoleClient } from '../../../../src/client/console.ts'
import { Button } from '../../components/button.tsx'
import { CopyableCode } from '../../components/copyable-code.tsx'
import { TextField } from '../../components/fields.tsx'
import { ErrorMessage } from '../../components/page.tsx'
import { errorText } from '../../data/error-text.ts'
import { signInWithKey } from '../../data/session.ts'

/** Signs in with an API key, for people without a sign-in link. */
export function SignIn(props: {
  readonly problem?: string | undefined
  readonly onSignedIn: (client: ConsoleClient) => void
}) {
  const [key, setKey] = useState('')
  const [problem, setProblem] = useState(props.problem)
  const [isBusy, setBusy] = useState(false)
  const submit = async (event: FormEvent): Promise<void> => {
    event.preventDefault()
    setBusy(true)
    try {
      props.onSignedIn(await signInWithKey(key.trim()))
    } catch (error) {
      setProblem(errorText(error))
      setBusy(false)
    }
  }
  return (
    <main className="sign-in">
      <img src="/console/mark.svg" alt="" width={40} height={40} />
      <h1>Sign in to Ringfence</h1>
      <ErrorMessage text={problem} />
      <form onSubmit={(event) => void submit(event)}>
        <TextField
          label="API key"
          type="password"
          value={key}
          onChange={setKey}
          mono
          autoFocus
          placeholder="rf_…"
          hint="The console has the same permissions as the key."
        />
        <Button tone="primary" disabled={isBusy || key.trim() === ''}>
          Sign in
        </Button>
      </form>
      <div className="sign-in-link">
        <p>Or open the one-time sign-in link that the server prints at startup:</p>
        <CopyableCode text="ringfence serve" />
      </div>
    </main>
  )
}
