import { isWithin } from '../model/files/path.ts'
import type { Guarantee } from '../model/guarantee.ts'
import { type Mount, ownedTargets, type Plan } from '../model/plan.ts'
import type { Containment, Risk } from '../model/risk.ts'
import { isRemote } from '../model/spec.ts'
import { SECRET_VARIABLE } from './commands/environment.ts'
import { SECRETS, SYSTEM_SECRETS } from './commands/locations.ts'
import { certificateEnvironment } from './network/proxy-environment.ts'

/** The sandbox that a command would run in. */
export type Behind = {
  readonly plan: Plan
  /** The backend chosen for the plan; it provides every guarantee that the plan needs. */
  readonly backend: string
  /** The hosts that can be reached now; default: the plan's. */
  readonly allowHosts?: readonly string[] | undefined
  /** Variables of the command itself, in addition to the plan's. */
  readonly env?: Readonly<Record<string, string>> | undefined
  /** The operator opened the network to sandboxes whose clients cannot ask anybody (E2B's), so using it is no question. */
  readonly isNetworkGranted?: boolean | undefined
  /** The home directory of the user who runs this process. */
  readonly home: string
}

/**
 * The risks that a sandbox contains, each with the guarantee that contains it. SECURITY: only guarantees that the plan
 * needs count, because the chosen backend provides them and they are not waived. `native`, `mock` and remote backends
 * contain nothing, and neither does a plan that mounts the whole host or one of its sockets, since any service may listen there.
 */
export function containedBy(behind: Behind): Containment {
  const { plan, backend, home, allowHosts, isNetworkGranted } = behind
  const known = KNOWN.get(plan) ?? new Map<string, Containment>()
  KNOWN.set(plan, known)
  const hasHosts = allowHosts ? allowHosts.length > 0 : null
  const key = JSON.stringify([backend, home, hasHosts, isNetworkGranted ?? false, hasSecrets(behind)])
  const found = known.get(key) ?? computed(behind)
  known.set(key, found)
  return found
}

/** A plan never changes, so its containment is computed once per combination of options. */
const KNOWN = new WeakMap<Plan, Map<string, Containment>>()

function computed(behind: Behind): Containment {
  const { plan, backend } = behind
  const isOpen = plan.preset === 'danger-full-access' || plan.unixSockets.length > 0
  if (backend === 'native' || backend === 'mock' || isRemote(backend) || isOpen) return {}
  const held: [Risk, Guarantee | undefined][] = [
    ...networkRisks(behind),
    ...fileRisks(behind),
    ['processes', all(plan, 'proc.hidden', 'ipc.private')],
    ['privileges', all(plan, 'kernel.filtered')],
    ['granted-secret', hasSecrets(behind) ? undefined : all(plan, 'env.clean')],
    ['resources', all(plan, 'limit.memory', 'limit.pids', 'limit.disk')],
  ]
  return Object.fromEntries(held.filter(([, guarantee]) => guarantee !== undefined))
}

/** The first of these guarantees, if the plan has all of them. */
const all = (
  { needs, waived }: Plan,
  ...names: readonly [Guarantee, ...Guarantee[]]
): Guarantee | undefined =>
  names.every((name) => needs.includes(name) && !waived.includes(name)) ? names[0] : undefined

function networkRisks(behind: Behind): [Risk, Guarantee | undefined][] {
  const { plan, allowHosts } = behind
  const { mode, allowHosts: planned, unlisted } = plan.network
  if (mode === 'full') return []
  const held = all(plan, `net.${mode}`, 'ipc.private')
  // A host counts as reachable if a person can be asked for it.
  const isClosed = mode !== 'fetch' || ((allowHosts ?? planned).length === 0 && unlisted !== 'ask')
  // SECURITY: a sandbox that has a secret could let others use it over the network.
  const isUsable = isClosed || (behind.isNetworkGranted === true && !hasSecrets(behind))
  // Without anything of the host inside, there is no account of the user to act through.
  const isPublishable = isClosed || (isUsable && mountsOfHost(plan).length === 0)
  return [
    ['network', isUsable ? held : undefined],
    ['publish', isPublishable ? held : undefined],
    // The effect of a downloaded program is unknown, even if the operator opened the network.
    ['downloaded-code', isClosed ? held : undefined],
    ['loopback', isUsable || plan.privateHosts.length === 0 ? held : undefined],
  ]
}

const mountsOfHost = (plan: Plan): readonly Mount[] =>
  plan.mounts.filter(({ target }) => !ownedTargets(plan).includes(target))

function fileRisks({ plan, home }: Behind): [Risk, Guarantee | undefined][] {
  const ofHost = mountsOfHost(plan)
  const writable = ofHost.filter(({ mode }) => mode === 'rw')
  // SECURITY: a directory above the workspace holds more than the workspace.
  const workspace = ofHost.find(({ target }) => target !== '/' && isWithin(plan.cwd, target))
  const onlyWorkspace = writable.every((mount) => mount === workspace)
  const shows = ofHost.some((mount) => showsCredentials(mount, home))
  const write = onlyWorkspace ? all(plan, 'fs.write') : undefined
  return [
    ['outside-write', write],
    ['machine-read', shows ? undefined : all(plan, 'fs.read', 'env.clean', 'proc.hidden')],
    ['workspace-credentials', ofHost.length === 0 ? all(plan, 'fs.read', 'env.clean') : undefined],
    ['persistence', write && (writable.length === 0 ? write : all(plan, 'fs.protect', 'cleanup'))],
    // With review, changes stay in an overlay, and a person sees deletions before they are applied.
    ['workspace-loss', writable.every(({ overlay }) => overlay) ? all(plan, 'fs.write') : undefined],
  ]
}

/** Variables that name the file with the proxy's certificates. */
const CERTIFICATES = new Set(Object.keys(certificateEnvironment('')))

/** A brokered secret, or a variable with the name of a secret. */
const hasSecrets = ({ plan, env }: Behind): boolean =>
  plan.secrets.length > 0 ||
  Object.keys({ ...plan.env, ...env }).some((name) => SECRET_VARIABLE.test(name) && !CERTIFICATES.has(name))

const segmentsOf = (path: string): readonly string[] => path.split('/').filter((segment) => segment !== '')
const SECRET_PARTS = SECRETS.map(segmentsOf)
/** Cut at the first wildcard; `/root` is handled with the other home directories. */
const SYSTEM_PARTS = SYSTEM_SECRETS.map((path) => path.replace(/\/[^/]*\*.*$/, '')).filter(
  (path) => path !== '/root',
)
const HOMES = /^\/(home|Users)(\/[^/]*)?$|^\/root$/

/** SECURITY: `fs.read` does not hide anything inside a mount, so a mount near credentials counts as showing them. */
function showsCredentials({ real, target }: Mount, home: string): boolean {
  return [real, target].some(
    (path) =>
      isWithin(home, path) ||
      HOMES.test(path) ||
      SYSTEM_PARTS.some((secret) => isWithin(secret, path) || isWithin(path, secret)) ||
      SECRET_PARTS.some((secret) => meets(segmentsOf(path), secret)),
  )
}

/** Whether the path contains a secret location, or is a parent directory of one. */
function meets(path: readonly string[], secret: readonly string[]): boolean {
  return path.some((_, start) =>
    secret.every((part, index) => start + index >= path.length || path[start + index] === part),
  )
}
