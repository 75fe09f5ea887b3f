import type { Wall } from '../../src/client/console-types.ts'
import type { Approval } from '../../src/client/types.ts'
import { oneLine } from './format.ts'
import { useClient } from './live.ts'
import { useLoad } from './load.ts'
import { Link } from './ui.tsx'

const PATH = /^(?:~|\.{1,2})?\/[^\s]*$/
const HOST = /^(?:[a-z]+:\/\/|[\w.-]+@)?([a-z0-9-]+(?:\.[a-z0-9-]+)+)(?:[:/].*)?$/i

/** What the words of a command name: paths and hosts, as far as they can be told. */
function named(approval: Approval): { readonly paths: readonly string[]; readonly hosts: readonly string[] } {
  const words = approval.decision.commands.flatMap(({ argv }) => argv.slice(1))
  const paths = words.filter((word) => PATH.test(word))
  const hosts = words.filter((word) => !PATH.test(word)).flatMap((word) => HOST.exec(word)?.[1] ?? [])
  return {
    paths: [...new Set(paths)],
    hosts: [...new Set(hosts)].filter((host) => !/\.(md|ts|js|py|txt|json|sh|c|go|rs)$/.test(host)),
  }
}

/** The reach of a command: what it names, and what its sandbox lets it reach whatever it does. */
export function Touches({ approval }: { readonly approval: Approval }) {
  const client = useClient()
  const { value: wall } = useLoad(`wall ${approval.sandbox_id}`, () => client.wall(approval.sandbox_id))
  const { paths, hosts } = named(approval)
  return (
    <dl className="touches">
      {(paths.length > 0 || hosts.length > 0) && (
        <div>
          <dt>it names</dt>
          <dd>
            {[...paths, ...hosts].map((one) => (
              <code key={one}>{oneLine(one)}</code>
            ))}
          </dd>
        </div>
      )}
      {wall?.open ? (
        <Reach wall={wall} />
      ) : (
        <div>
          <dt>its sandbox</dt>
          <dd className="dim">has ended, or is being looked at…</dd>
        </div>
      )}
    </dl>
  )
}

function Reach({ wall }: { readonly wall: Wall }) {
  const writable = (wall.mounts ?? []).filter(({ mode }) => mode === 'rw')
  const hosts = wall.network?.allow_hosts ?? []
  return (
    <>
      <div>
        <dt>can change</dt>
        <dd>
          {writable.length === 0
            ? 'nothing of the host'
            : writable.map(({ target, own, source, review }) => (
                <code key={target} title={source ?? ''}>
                  {oneLine(target)}
                  {own ? ' (its own)' : review ? ' (waits under Changes)' : ''}
                </code>
              ))}
        </dd>
      </div>
      <div>
        <dt>can reach</dt>
        <dd>
          {wall.network?.mode === 'offline' && 'no address at all'}
          {wall.network?.mode === 'loopback' && 'only itself'}
          {wall.network?.mode === 'full' && 'every address'}
          {wall.network?.mode === 'fetch' &&
            (hosts.length === 0 ? 'no host' : hosts.map((host) => <code key={host}>{oneLine(host)}</code>))}
        </dd>
      </div>
      <div>
        <dt>secrets</dt>
        <dd>
          {(wall.secrets ?? []).length === 0
            ? 'none'
            : (wall.secrets ?? []).map(({ name, host }) => (
                <code key={name}>
                  {name} → {host}
                </code>
              ))}
        </dd>
      </div>
      <div>
        <dt>stays behind</dt>
        <dd>
          <Link to={`/sandboxes/${wall.id}/wall`}>
            {wall.backend} wall, {wall.needs?.length ?? 0} guarantees
          </Link>
        </dd>
      </div>
    </>
  )
}
