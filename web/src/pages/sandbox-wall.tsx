import type { Wall } from '../../../src/client/console-types.ts'
import { GUARANTEES, type Guarantee } from '../../../src/model/guarantee.ts'
import { oneLine } from '../format.ts'
import { useClient, useSnapshot } from '../live.ts'
import { useLoad } from '../load.ts'
import { Empty, Panel, ScrollX } from '../ui.tsx'
import { WallDrawing } from '../wall-drawing.tsx'

/** What stands between the sandbox and the host: drawn, then listed, as the kernel reports it. */
export function WallTab({ id }: { readonly id: string }) {
  const client = useClient()
  const { sandboxes } = useSnapshot()
  const hosts = sandboxes.find((one) => one.id === id)?.network.allow_hosts.join(' ')
  const { value: wall, error } = useLoad(`wall ${id} ${hosts}`, () => client.wall(id))
  if (!wall) return <p className="dim">{error ?? '…'}</p>
  if (!wall.open)
    return (
      <Panel title="The wall">
        <Empty title="The wall went down with the sandbox">
          These layers were in place: {wall.layers.join(', ') || 'none on record'}.
        </Empty>
      </Panel>
    )
  return (
    <>
      <Panel title="The wall" aside={<span className="dim">what is inside, and what crosses</span>}>
        <WallDrawing
          wall={{
            ...wall,
            ...(hosts === undefined
              ? {}
              : {
                  network: {
                    mode: wall.network?.mode ?? 'offline',
                    allow_hosts: hosts.split(' ').filter(Boolean),
                  },
                }),
          }}
        />
      </Panel>
      <div className="columns">
        <Panel title="Layers, read back from the kernel">
          <ol className="layers">
            {wall.layers.map((layer) => (
              <li key={layer}>{layer}</li>
            ))}
          </ol>
        </Panel>
        <Guarantees wall={wall} />
        <Mounts wall={wall} />
        <Panel title="Limits and names">
          <dl className="pairs">
            {Object.entries(wall.limits ?? {}).map(([name, value]) => (
              <div key={name}>
                <dt>{name}</dt>
                <dd className="num">
                  {String(value)}
                  {wall.nets?.includes(name) && <span className="dim"> (a safety net)</span>}
                </dd>
              </div>
            ))}
            <div>
              <dt>variables</dt>
              <dd className="mono wrap">{wall.env?.join(' ') || 'none'}</dd>
            </div>
            <div>
              <dt>protected</dt>
              <dd className="mono wrap">{wall.protection?.join(' ') || 'none'}</dd>
            </div>
          </dl>
        </Panel>
      </div>
    </>
  )
}

function Guarantees({ wall }: { readonly wall: Wall }) {
  return (
    <Panel title="Guarantees that this sandbox needs">
      <ul className="guarantees">
        {(wall.needs ?? []).map((name) => (
          <li key={name}>
            <span className="good-text" aria-hidden="true">
              ✓{' '}
            </span>
            <code>{name}</code> <span className="dim">{GUARANTEES[name as Guarantee]}</span>
          </li>
        ))}
        {(wall.waived ?? []).map((name) => (
          <li key={name}>
            <span className="warn-text">! waived </span>
            <code>{name}</code> <span className="dim">{GUARANTEES[name as Guarantee]}</span>
          </li>
        ))}
      </ul>
    </Panel>
  )
}

function Mounts({ wall }: { readonly wall: Wall }) {
  return (
    <Panel title="Mounts">
      {(wall.mounts ?? []).length === 0 ? (
        <p className="dim">None: nothing of yours is in it. Its own {wall.cwd} goes with it.</p>
      ) : (
        <ScrollX label="Mounts">
          <table>
            <thead>
              <tr>
                <th scope="col">Inside</th>
                <th scope="col">On the host</th>
                <th scope="col">Mode</th>
              </tr>
            </thead>
            <tbody>
              {(wall.mounts ?? []).map(({ source, target, mode, own, review }) => (
                <tr key={target}>
                  <td className="mono">{oneLine(target)}</td>
                  <td className="mono dim">
                    {own ? 'its own, gone with it' : source === null ? '–' : oneLine(source)}
                  </td>
                  <td>{review ? 'rw, changes wait' : mode}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </ScrollX>
      )}
    </Panel>
  )
}
