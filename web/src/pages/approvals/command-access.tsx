import type { ReactNode } from 'react'
import type { Wall } from '../../../../src/client/console-types.ts'
import type { Approval } from '../../../../src/client/types.ts'
import { Link } from '../../components/link.tsx'
import { useClient } from '../../data/live-context.ts'
import { useLoad } from '../../data/use-load.ts'
import { safeLine } from '../../format.ts'

/** What a command mentions, and what its sandbox lets it access whatever it does. */
export function CommandAccess({ approval }: { readonly approval: Approval }) {
  const client = useClient()
  const { value: wall, error } = useLoad(`wall ${approval.sandbox_id}`, () =>
    client.wall(approval.sandbox_id),
  )
  const mentions = mentionedIn(approval)
  return (
    <dl className="access">
      {mentions.length > 0 && (
        <Row name="Mentions">
          {mentions.map((mention) => (
            <code key={mention}>{safeLine(mention)}</code>
          ))}
        </Row>
      )}
      {wall?.open ? (
        <SandboxAccess wall={wall} />
      ) : (
        <Row name="Sandbox">
          <span className="dim">{wall || error ? 'ended' : 'Loading…'}</span>
        </Row>
      )}
    </dl>
  )
}

const Row = ({ name, children }: { readonly name: string; readonly children: ReactNode }) => (
  <div>
    <dt>{name}</dt>
    <dd>{children}</dd>
  </div>
)

const PATH = /^(?:~|\.{1,2})?\/[^\s]*$/
const HOST = /^(?:[a-z]+:\/\/|[\w.-]+@)?([a-z0-9-]+(?:\.[a-z0-9-]+)+)(?:[:/].*)?$/i
const FILE_NAME = /\.(md|ts|js|py|txt|json|sh|c|go|rs)$/

/** Paths and hosts among the arguments, as far as they can be recognized. */
function mentionedIn(approval: Approval): readonly string[] {
  const words = approval.decision.commands.flatMap(({ argv }) => argv.slice(1))
  const paths = words.filter((word) => PATH.test(word))
  const hosts = words.filter((word) => !PATH.test(word)).flatMap((word) => HOST.exec(word)?.[1] ?? [])
  return [...new Set([...paths, ...hosts.filter((host) => !FILE_NAME.test(host))])]
}

function SandboxAccess({ wall }: { readonly wall: Wall }) {
  const writable = (wall.mounts ?? []).filter(({ mode }) => mode === 'rw')
  const secrets = wall.secrets ?? []
  return (
    <>
      <Row name="Can write">
        {writable.length === 0
          ? 'no host files'
          : writable.map(({ target, own, source, review }) => (
              <code key={target} title={source ?? ''}>
                {safeLine(target)}
                {own ? ' (private)' : review ? ' (reviewed before it is applied)' : ''}
              </code>
            ))}
      </Row>
      <Row name="Can connect to">
        <Reachable wall={wall} />
      </Row>
      <Row name="Secrets">
        {secrets.length === 0
          ? 'none'
          : secrets.map(({ name, host }) => (
              <code key={name}>
                {name} → {host}
              </code>
            ))}
      </Row>
      <Row name="Isolation">
        <Link to={`/sandboxes/${wall.id}/wall`}>
          {wall.backend}, {wall.needs?.length ?? 0} guarantees
        </Link>
      </Row>
    </>
  )
}

const REACHABLE: Readonly<Record<string, string>> = {
  offline: 'nothing (offline)',
  loopback: 'only itself (loopback)',
  full: 'any address',
}

function Reachable({ wall: { network } }: { readonly wall: Wall }) {
  if (network?.mode !== 'fetch') return REACHABLE[network?.mode ?? '']
  if (network.allow_hosts.length === 0) return 'no hosts'
  return network.allow_hosts.map((host) => <code key={host}>{safeLine(host)}</code>)
}
