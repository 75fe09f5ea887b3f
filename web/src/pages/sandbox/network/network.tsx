import { useMemo, useState } from 'react'
import type { ConsoleSandbox, EgressView } from '../../../../../src/client/console-types.ts'
import { EmptyState } from '../../../components/empty-state.tsx'
import { Panel } from '../../../components/panel.tsx'
import { useClient, useLiveData } from '../../../data/live-context.ts'
import { useLoad } from '../../../data/use-load.ts'
import { AllowedHosts, AllowHostDialog } from './allowed-hosts.tsx'
import { ConnectionTable, HostTable, trafficByHost } from './traffic-tables.tsx'

/** The allowed hosts, which can change while the sandbox runs, and its allowed and blocked connections. */
export function Network({ sandbox }: { readonly sandbox: ConsoleSandbox }) {
  const connections = useConnections(sandbox)
  const hosts = useMemo(() => trafficByHost(connections), [connections])
  const [newHost, setNewHost] = useState<string | undefined>(undefined)
  if (sandbox.network.mode !== 'fetch') return <NoProxy mode={sandbox.network.mode} />
  return (
    <>
      <AllowedHosts sandbox={sandbox} onAdd={() => setNewHost('')} />
      <Panel title="Hosts">
        {hosts.length === 0 ? (
          <p className="dim note">No connections yet.</p>
        ) : (
          <HostTable hosts={hosts} allowed={sandbox.network.allow_hosts} onAllow={setNewHost} />
        )}
      </Panel>
      {connections.length > 0 && (
        <Panel title="Connections" aside={<span className="dim">Newest first</span>}>
          <ConnectionTable connections={connections} />
        </Panel>
      )}
      {newHost !== undefined && (
        <AllowHostDialog sandbox={sandbox} host={newHost} onClose={() => setNewHost(undefined)} />
      )}
    </>
  )
}

const NONE: readonly EgressView[] = []

/** Fetched again whenever a connection is recorded or counted. */
function useConnections({ id, egress }: ConsoleSandbox): readonly EgressView[] {
  const client = useClient()
  const { records } = useLiveData()
  const last = records.findLast(
    ({ sandbox_id, event, host }) =>
      sandbox_id === id && (event === 'Connection' || typeof host === 'string'),
  )
  const key = `egress ${id} ${last?.seq} ${egress?.allowed} ${egress?.refused}`
  return useLoad(key, () => client.egress(id)).value?.items ?? NONE
}

const MODES: Readonly<Record<string, string>> = {
  offline: 'Offline: this sandbox has no network access',
  loopback: 'Loopback: this sandbox can connect only to itself',
  full: 'Full access: connections are not filtered or recorded',
}

const NoProxy = ({ mode }: { readonly mode: string }) => (
  <Panel title="Network">
    <EmptyState
      title={MODES[mode] ?? mode}
      command="ringfence sandbox create --network fetch --allow-host pypi.org"
    >
      In fetch mode, a sandbox can connect only to its allowed hosts, through a proxy that records every
      connection:
    </EmptyState>
  </Panel>
)
