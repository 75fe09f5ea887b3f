import { useState } from 'react'
import type { BackendView } from '../../../src/client/console-types.ts'
import { GUARANTEE_NAMES, GUARANTEES } from '../../../src/model/guarantee.ts'
import { millis, plain } from '../format.ts'
import { useClient } from '../live.ts'
import { Badge, Button, Code, Page, Panel, useLoad } from '../ui.tsx'

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
                <Badge word={weight} /> <span>{plain(text)}</span>
                {fix && <Code text={fix} />}
              </li>
            ))}
          </ul>
        </Panel>
      )}
      {value && (
        <div className="columns">
          {value.backends.map((backend) => (
            <BackendPanel key={backend.name} backend={backend} />
          ))}
        </div>
      )}
    </Page>
  )
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
          {backend.fix && <Code text={backend.fix} />}
        </>
      )}
    </Panel>
  )
}
