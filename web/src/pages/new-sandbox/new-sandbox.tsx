import { type FormEvent, useState } from 'react'
import type { SandboxSpec } from '../../../../src/client/types.ts'
import { navigate } from '../../browser/route.ts'
import { Button } from '../../components/button.tsx'
import { CopyableCode } from '../../components/copyable-code.tsx'
import { EmptyState } from '../../components/empty-state.tsx'
import { ErrorMessage, Page } from '../../components/page.tsx'
import { Panel } from '../../components/panel.tsx'
import { errorText } from '../../data/error-text.ts'
import { useClient } from '../../data/live-context.ts'
import { useMayCreate } from '../../data/permissions.ts'
import { EnvironmentFields, LimitFields, NameFields, NetworkFields } from './fields.tsx'
import { commandOf, EMPTY_FORM, invalidLabels, type SandboxForm, specOf } from './request.ts'

/** Creates a sandbox, and shows the command that does the same. */
export function NewSandbox({ template }: { readonly template: string }) {
  const mayCreate = useMayCreate()
  const [form, setForm] = useState<SandboxForm>({ ...EMPTY_FORM, template })
  const { create, isBusy, error } = useCreate()
  const spec = specOf(form)
  const badLabels = invalidLabels(form)
  const fields = { form, onChange: (change: Partial<SandboxForm>) => setForm({ ...form, ...change }) }
  const submit = (event: FormEvent): void => {
    event.preventDefault()
    if (!isBusy && badLabels.length === 0) void create(spec)
  }
  if (!mayCreate) return <NotPermitted />
  return (
    <Page title="New sandbox">
      <form className="new-sandbox" onSubmit={submit}>
        <div className="new-sandbox-fields">
          <NameFields {...fields} badLabels={badLabels} />
          <EnvironmentFields {...fields} />
          <NetworkFields {...fields} />
          <LimitFields {...fields} />
        </div>
        <Panel title="Create" className="new-sandbox-create">
          <p className="dim">Empty fields use the server’s defaults. The same from a terminal:</p>
          <CopyableCode text={commandOf(spec)} />
          <p className="hint">
            <code>RINGFENCE_URL={location.origin}</code> and <code>RINGFENCE_API_KEY</code> name the server
            and the key.
          </p>
          <ErrorMessage text={error} />
          <div className="buttons">
            <Button tone="primary" disabled={isBusy}>
              {isBusy ? 'Creating…' : 'Create sandbox'}
            </Button>
          </div>
        </Panel>
      </form>
    </Page>
  )
}

/** Sends the request, then opens the page of the new sandbox. */
function useCreate() {
  const client = useClient()
  const [isBusy, setBusy] = useState(false)
  const [error, setError] = useState<string | undefined>(undefined)
  const create = async (spec: SandboxSpec): Promise<void> => {
    setBusy(true)
    setError(undefined)
    try {
      navigate(`/sandboxes/${(await client.create(spec)).id}`, true)
    } catch (problem) {
      setError(errorText(problem))
      setBusy(false)
    }
  }
  return { create, isBusy, error }
}

const NotPermitted = () => (
  <Page title="New sandbox">
    <EmptyState title="This key cannot create sandboxes">
      It lacks the scope <code>create</code>. Sign in with a key that has it, or ask an operator for one.
    </EmptyState>
  </Page>
)
