import { useMemo, useState } from 'react'
import type { ConsoleSandbox, EgressView } from '../../../src/client/console-types.ts'
import type { HostVerdict } from '../../../src/client/types.ts'
import { Confirm } from '../dialog.tsx'
import { Field } from '../fields.tsx'
import { bytes, clock, count, millis, oneLine } from '../format.ts'
import { useClient, useSnapshot } from '../live.ts'
import { useLoad } from '../load.ts'
import { attempt, tell } from '../messages.tsx'
import { Badge, Button, Empty, Panel, ScrollX } from '../ui.tsx'

type Host = {
  readonly host: string
  readonly allowed: number
  readonly refused: number
  readonly in: number
  readonly out: number
  readonly reason: string
}

function byHost(items: readonly EgressView[]): readonly Host[] {
  const hosts = new Map<string, Host>()
  for (const one of items) {
    const before = hosts.get(one.host) ?? {
      host: one.host,
      allowed: 0,
      refused: 0,
      in: 0,
      out: 0,
      reason: '',
    }
    hosts.set(one.host, {
      host: one.host,
      allowed: before.allowed + (one.verdict === 'allow' ? 1 : 0),
      refused: before.refused + (one.verdict === 'deny' ? 1 : 0),
      in: before.in + one.bytes_in,
      out: before.out + one.bytes_out,
      reason: one.verdict === 'deny' ? one.reason : before.reason,
    })
  }
  return [...hosts.values()].sort((a, b) => b.refused - a.refused || b.allowed - a.allowed)
}

/** Where it went, where it was not let, and the list of hosts, which can change while it runs. */
export function Network({ one }: { readonly one: ConsoleSandbox }) {
  const client = useClient()
  const { records } = useSnapshot()
  const last =
    records.findLast(
      ({ sandbox_id, event, host }) =>
        sandbox_id === one.id && (event === 'Connection' || typeof host === 'string'),
    )?.seq ?? -1
  const { value } = useLoad(`egress ${one.id} ${last} ${one.egress?.allowed} ${one.egress?.refused}`, () =>
    client.egress(one.id),
  )
  const items = value?.items ?? []
  const hosts = useMemo(() => byHost(items), [items])
  const [adding, setAdding] = useState<string | undefined>(undefined)
  if (one.network.mode !== 'fetch')
    return (
      <Panel title="Network">
        <Empty
          title={NO_PROXY[one.network.mode] ?? one.network.mode}
          command="ringfence sandbox create --network fetch --allow-host pypi.org"
        >
          A sandbox with network mode fetch reaches only the hosts on its list, through a proxy that writes
          down every try:
        </Empty>
      </Panel>
    )
  return (
    <>
      <Panel title="Allowed hosts" aside={<Button onClick={() => setAdding('')}>Allow a host…</Button>}>
        <ul className="chips">
          {one.network.allow_hosts.map((host) => (
            <li key={host}>
              <code>{oneLine(host)}</code>
              <button
                type="button"
                className="link"
                aria-label={`take ${host} off the list`}
                onClick={() =>
                  void attempt(
                    async () =>
                      (await client.get(one.id)).setAllowHosts(
                        one.network.allow_hosts.filter((other) => other !== host),
                      ),
                    `${host} is no longer reached`,
                  )
                }
              >
                ✕
              </button>
            </li>
          ))}
          {one.network.allow_hosts.length === 0 && <li className="dim">none: nothing can be reached</li>}
        </ul>
      </Panel>
      <Panel title="Hosts">
        {hosts.length === 0 ? (
          <p className="dim quiet-line">It has not tried to reach anything yet.</p>
        ) : (
          <ScrollX label="Hosts">
            <table>
              <thead>
                <tr>
                  <th scope="col">Host</th>
                  <th scope="col" className="num">
                    Allowed
                  </th>
                  <th scope="col" className="num">
                    Refused
                  </th>
                  <th scope="col" className="num">
                    In
                  </th>
                  <th scope="col" className="num">
                    Out
                  </th>
                  <th scope="col">Why refused</th>
                  <th scope="col">
                    <span className="hidden">Action</span>
                  </th>
                </tr>
              </thead>
              <tbody>
                {hosts.map((host) => (
                  <tr key={host.host}>
                    <td className="mono">{oneLine(host.host)}</td>
                    <td className="num">{count(host.allowed)}</td>
                    <td className="num">
                      {host.refused > 0 ? <span className="bad-text">✕ {count(host.refused)}</span> : 0}
                    </td>
                    <td className="num">{bytes(host.in)}</td>
                    <td className="num">{bytes(host.out)}</td>
                    <td className="dim">{oneLine(host.reason)}</td>
                    <td className="row-actions">
                      {host.refused > 0 && !one.network.allow_hosts.includes(host.host) && (
                        <Button onClick={() => setAdding(host.host)}>Allow this host</Button>
                      )}
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
          </ScrollX>
        )}
      </Panel>
      {items.length > 0 && (
        <Panel title="Connections" aside={<span className="dim">newest first</span>}>
          <ScrollX label="Connections">
            <table>
              <thead>
                <tr>
                  <th scope="col">Time</th>
                  <th scope="col">Verdict</th>
                  <th scope="col">Host</th>
                  <th scope="col">Protocol</th>
                  <th scope="col" className="num">
                    In
                  </th>
                  <th scope="col" className="num">
                    Out
                  </th>
                  <th scope="col" className="num">
                    Took
                  </th>
                </tr>
              </thead>
              <tbody>
                {items.slice(0, 200).map((each, index) => (
                  <tr key={index}>
                    <td className="nowrap">{each.at ? clock(each.at) : '–'}</td>
                    <td>
                      <Badge word={each.verdict} title={each.reason} />
                    </td>
                    <td className="mono">
                      {oneLine(each.host)}:{each.port}
                    </td>
                    <td>{each.protocol}</td>
                    <td className="num">{bytes(each.bytes_in)}</td>
                    <td className="num">{bytes(each.bytes_out)}</td>
                    <td className="num">{millis(each.duration_ms)}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </ScrollX>
        </Panel>
      )}
      {adding !== undefined && <Allow one={one} first={adding} onClose={() => setAdding(undefined)} />}
    </>
  )
}

const NO_PROXY: Readonly<Record<string, string>> = {
  offline: 'It is offline: no address can be reached',
  loopback: 'It reaches only itself',
  full: 'It has the whole network, so there is no list and no log of hosts',
}

/** Only what the policy answered: a host on the list may still be one that is never reached. */
function sayVerdict(host: string, verdicts: readonly HostVerdict[] = []): void {
  const answer = verdicts.find((each) => each.host === host)
  if (answer === undefined) tell(`${host} is on the list`)
  else if (answer.verdict === 'allow') tell(`${host}: ${answer.reason}`)
  else tell(`${host} is on the list and stays refused: ${answer.reason}`, true)
}

function Allow({
  one,
  first,
  onClose,
}: {
  readonly one: ConsoleSandbox
  readonly first: string
  readonly onClose: () => void
}) {
  const client = useClient()
  const [host, setHost] = useState(first)
  return (
    <Confirm
      title="Allow a host"
      yes="Allow it now"
      disabled={host.trim() === ''}
      onClose={onClose}
      onYes={async () => {
        const hosts = [...new Set([...one.network.allow_hosts, host.trim()])]
        const isSet = await attempt(async () => {
          const { hosts: verdicts } = await (await client.get(one.id)).setAllowHosts(hosts)
          sayVerdict(host.trim(), verdicts)
        })
        if (isSet) onClose()
      }}
    >
      <Field
        label="Host"
        mono
        value={host}
        onChange={setHost}
        autoFocus
        placeholder="pypi.org, or *.example.com"
        hint="Takes effect at once, for this sandbox alone. Private and metadata addresses stay closed."
      />
    </Confirm>
  )
}
