import { useState } from 'react'
import type { BackendView } from '../../../src/client/console-types.ts'
import { GUARANTEE_NAMES, GUARANTEES } from '../../../src/model/guarantee.ts'
import { millis, plain } from '../format.ts'
import { useClient } from '../live.ts'
import { useLoad } from '../load.ts'
import { Badge, Button, Code, Page, Panel } from '../ui.tsx'

/** What this host can do, measured, and what to do about the rest. */
export function Backends() {
  const client = useClient()
  const [turn, setTurn] = useState(0)
  const { value, error } = useLoad(`doctor ${turn}`, () => client.doctor())
  return (
    <Page
      title="Backends"
      aside={
        <span className="line">
          {value && (
            <span className="dim">
              node {value.node} · kernel {value.kernel}
            </span>
          )}
          <Button onClick={() => setTurn(turn + 1)} disabled={!value && !error}>
            Measure again
          </Button>
        </span>
      }
    >
      {error && (
        <p role="alert" className="problem">
          ✕ {error}
        </p>
      )}
      {!value && !error && (
        <p className="dim" role="status">
          Each backend is being started once…
        </p>
      )}
      {value && value.notes.length > 0 && (
        <Panel title="About this host">
          <ul className="notes">
            {value.notes.map(({ id, weight, text, fix }) => (
              <li key={id}>
                <Badge word={weight === 'tells' ? 'note' : weight} /> <span>{plain(text)}</span>
                {fix && (isCommand(fix) ? <Code text={fix} /> : <span className="dim"> → {plain(fix)}</span>)}
              </li>
            ))}
          </ul>
        </Panel>
      )}
      {value && (
        <div className="columns even">
          {value.backends.map((backend) => (
            <BackendPanel key={backend.name} backend={backend} />
          ))}
        </div>
      )}
    </Page>
  )
}

/** A line to paste, or a sentence to read. */
const isCommand = (fix: string): boolean =>
  /^(sudo|export|apt|sysctl|echo|ringfence|npm|modprobe|mkdir|mount|usermod|systemctl|docker)[\s-]/.test(fix)

const WHAT: Readonly<Record<string, string>> = {
  bubblewrap: 'Namespaces, system call filter and Landlock around the host’s own tools.',
  docker: 'A hardened container of Docker or Podman, with runc or runsc.',
  gvisor: 'A kernel of its own in user space, by runsc.',
  microvm: 'A virtual machine of its own.',
  e2b: 'Elsewhere: E2B’s cloud, or whoever speaks its language.',
  openshell: 'Elsewhere: an OpenShell gateway.',
  native: 'No wall at all. Only by name, and on record.',
  mock: 'In memory, for tests of callers. It runs nothing.',
  seatbelt: 'A generated profile of macOS, closed by default.',
}

function BackendPanel({ backend }: { readonly backend: BackendView }) {
  return (
    <Panel
      title={backend.name}
      aside={
        <span className="line">
          <span className="dim">
            {backend.level}
            {backend.emulated ? ', emulated' : ''}
          </span>
          <Badge word={backend.available ? 'available' : 'missing'} />
        </span>
      }
    >
      {WHAT[backend.name] && <p className="dim">{WHAT[backend.name]}</p>}
      {backend.available ? (
        <>
          <p>
            starts in <span className="num">{millis(backend.start_ms)}</span> · keeps{' '}
            {backend.guarantees.length} of {GUARANTEE_NAMES.length} guarantees
            {backend.by_name_only && <span className="warn-text"> · only by name</span>}
          </p>
          <ul className="kept">
            {GUARANTEE_NAMES.map((name) => {
              const kept = backend.guarantees.includes(name)
              return (
                <li key={name} className={kept ? 'yes' : 'no'} title={GUARANTEES[name]}>
                  <span aria-hidden="true">{kept ? '✓' : '·'}</span> {name}
                  {!kept && <span className="hidden"> not kept</span>}
                </li>
              )
            })}
          </ul>
        </>
      ) : (
        <>
          <p>{plain(backend.reason ?? 'it is not here')}</p>
          {backend.fix &&
            (isCommand(backend.fix) ? (
              <Code text={backend.fix} />
            ) : (
              <p className="dim">{plain(backend.fix)}</p>
            ))}
        </>
      )}
    </Panel>
  )
}
