import type { ReactNode } from 'react'
import type { ConsoleSandbox, Sample } from '../../../../src/client/console-types.ts'
import { BackendLevel } from '../../components/backend-level.tsx'
import { Badge } from '../../components/badge.tsx'
import { Sparkline } from '../../components/sparkline.tsx'
import { useLiveStore } from '../../data/live-context.ts'
import { ageOf, useSandboxStatus } from '../../data/sandbox-status.ts'
import { useNow } from '../../data/use-now.ts'
import { formatBytes, formatDateTime, formatDuration, safeLine } from '../../format.ts'

/** The key facts of a sandbox, above its tabs. */
export function SandboxFacts({ sandbox }: { readonly sandbox: ConsoleSandbox }) {
  const { samplesOf } = useLiveStore()
  const status = useSandboxStatus()(sandbox)
  return (
    <dl className="facts">
      <Fact name="State">
        <Badge word={status} />
        {sandbox.reason && <span className="dim"> {safeLine(sandbox.reason)}</span>}
      </Fact>
      <Fact name="Agent">{sandbox.agent_id ? safeLine(sandbox.agent_id) : '–'}</Fact>
      <Fact name="Backend">
        {sandbox.backend ?? '–'} <BackendLevel {...sandbox} />
      </Fact>
      <Fact name="Network">{sandbox.network.mode}</Fact>
      <Fact name="Age">
        <Age sandbox={sandbox} />
      </Fact>
      <Usage samples={samplesOf(sandbox.id)} />
      <Fact name="ID">
        <span className="mono">{sandbox.id}</span>
      </Fact>
    </dl>
  )
}

const Fact = ({ name, children }: { readonly name: string; readonly children: ReactNode }) => (
  <div>
    <dt>{name}</dt>
    <dd>{children}</dd>
  </div>
)

function Age({ sandbox }: { readonly sandbox: ConsoleSandbox }) {
  const now = useNow()
  const left = sandbox.expires_at ? Date.parse(sandbox.expires_at) - now : 0
  return (
    <span className="num" title={formatDateTime(sandbox.created_at)}>
      {formatDuration(ageOf(sandbox, now))}
      {left > 0 && <span className="dim"> · expires in {formatDuration(left)}</span>}
    </span>
  )
}

function Usage({ samples }: { readonly samples: readonly Sample[] }) {
  const latest = samples.at(-1)
  if (!latest) return null
  const [cpu, memory] = [`${latest[0].toFixed(0)}%`, formatBytes(latest[1])]
  return (
    <>
      <Fact name="CPU">
        <Sparkline values={samples.map(([value]) => value)} max={100} label={`${cpu} CPU`} />{' '}
        <span className="num">{cpu}</span>
      </Fact>
      <Fact name="Memory">
        <Sparkline values={samples.map(([, value]) => value)} label={`${memory} of memory`} />{' '}
        <span className="num">{memory}</span>
      </Fact>
    </>
  )
}
