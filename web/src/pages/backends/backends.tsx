import { useState } from 'react'
import type { BackendView, Doctor } from '../../../../src/client/console-types.ts'
import { GUARANTEE_NAMES, GUARANTEES } from '../../../../src/model/guarantee.ts'
import { Badge } from '../../components/badge.tsx'
import { Button } from '../../components/button.tsx'
import { CopyableCode } from '../../components/copyable-code.tsx'
import { ErrorMessage, Loading, Page } from '../../components/page.tsx'
import { Panel } from '../../components/panel.tsx'
import { useClient } from '../../data/live-context.ts'
import { useLoad } from '../../data/use-load.ts'
import { capitalize, formatMillis, isIsolating, safeText } from '../../format.ts'

/** The isolation backends of this host, tested, and how to fix what is missing. */
export function Backends() {
  const client = useClient()
  const [run, setRun] = useState(0)
  const { value, error } = useLoad(`doctor ${run}`, () => client.doctor())
  return (
    <Page
      title="Backends"
      aside={
        <span className="line">
          {value && (
            <span className="dim">
              Node.js {value.node} · kernel {value.kernel}
            </span>
          )}
          <Button onClick={() => setRun(run + 1)} disabled={!value && !error}>
            Test again
          </Button>
        </span>
      }
    >
      <ErrorMessage text={error} />
      {!value && !error && <Loading text="Starting each backend once…" />}
      {value && value.notes.length > 0 && <HostNotes notes={value.notes} />}
      {value && (
        <>
          <BackendPanels backends={value.backends.filter(({ name }) => isIsolating(name))} />
          <h2>Without isolation</h2>
          <BackendPanels backends={value.backends.filter(({ name }) => !isIsolating(name))} />
        </>
      )}
    </Page>
  )
}

const BackendPanels = ({ backends }: { readonly backends: readonly BackendView[] }) => (
  <div className="columns even">
    {backends.map((backend) => (
      <BackendPanel key={backend.name} backend={backend} />
    ))}
  </div>
)

const SEVERITY = { stops: 'error', weakens: 'warning', tells: 'info' } as const

function HostNotes({ notes }: { readonly notes: Doctor['notes'] }) {
  return (
    <Panel title="Host">
      <ul className="host-notes">
        {notes.map(({ id, weight, text, fix }) => (
          <li key={id}>
            <Badge word={SEVERITY[weight]} /> <span>{safeText(capitalize(text))}</span>
            {fix && <Fix text={fix} />}
          </li>
        ))}
      </ul>
    </Panel>
  )
}

const COMMAND =
  /^(sudo|export|apt|sysctl|echo|ringfence|npm|modprobe|mkdir|mount|usermod|systemctl|docker)[\s-]/

/** A fix is a command to copy or a sentence to read. */
function Fix({ text }: { readonly text: string }) {
  return COMMAND.test(text) ? (
    <CopyableCode text={text} />
  ) : (
    <p className="dim">{safeText(capitalize(text))}</p>
  )
}

const DESCRIPTIONS: Readonly<Record<string, string>> = {
  bubblewrap: 'Namespaces, seccomp and Landlock around the host’s own programs.',
  docker: 'A hardened Docker or Podman container, with runc or runsc.',
  gvisor: 'gVisor: a user-space kernel per sandbox (runsc).',
  microvm: 'A virtual machine per sandbox.',
  e2b: 'Remote: E2B cloud or a compatible server.',
  openshell: 'Remote: an OpenShell gateway.',
  native: 'No isolation. Must be selected by name; recorded in the audit log.',
  mock: 'In memory, for tests. Runs no commands.',
  seatbelt: 'A generated macOS sandbox profile that denies by default.',
}

function BackendPanel({ backend }: { readonly backend: BackendView }) {
  const description = DESCRIPTIONS[backend.name]
  return (
    <Panel
      title={backend.name}
      aside={
        <span className="line">
          <span className="dim">
            {backend.level}
            {backend.emulated ? ', emulated' : ''}
          </span>
          <Badge word={backend.available ? 'available' : 'unavailable'} />
        </span>
      }
    >
      {description && <p className="dim">{description}</p>}
      {backend.available ? (
        <Available backend={backend} />
      ) : (
        <>
          <p>{safeText(capitalize(backend.reason ?? 'not available on this host'))}</p>
          {backend.fix && <Fix text={backend.fix} />}
        </>
      )}
    </Panel>
  )
}

function Available({ backend }: { readonly backend: BackendView }) {
  return (
    <>
      <p>
        Starts in <span className="num">{formatMillis(backend.start_ms)}</span> · {backend.guarantees.length}{' '}
        of {GUARANTEE_NAMES.length} guarantees
        {backend.by_name_only && <span className="warn-text"> · only by name</span>}
      </p>
      <ul className="guarantee-list">
        {GUARANTEE_NAMES.map((name) => {
          const isProvided = backend.guarantees.includes(name)
          return (
            <li key={name} className={isProvided ? 'yes' : 'no'} title={GUARANTEES[name]}>
              <span aria-hidden="true">{isProvided ? '✓' : '·'}</span> {name}
              {!isProvided && <span className="hidden"> not provided</span>}
            </li>
          )
        })}
      </ul>
    </>
  )
}
