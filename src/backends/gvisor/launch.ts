import type { Mount, Plan } from '../../model/plan.ts'

/** Translates a plan to an OCI bundle: `config.json` and the mount points that its root needs. Pure. */

/** The root file system: the host's own tools, or an unpacked image. */
export type Root = {
  /** `/bin -> usr/bin` and the like. */
  readonly links: readonly { readonly path: string; readonly target: string }[]
  /** Small files that are copied, because each mount has a cost. */
  readonly copied: readonly string[]
  /** Mounted read-only. */
  readonly shown: readonly {
    readonly source: string
    readonly target: string
    readonly kind: 'dir' | 'file'
  }[]
}

/** What a bundle needs besides its plan. */
export type BundleContext = {
  readonly agent: string
  /** Our directory with the plan's files, and an empty one called `nothing`. */
  readonly files: string
  readonly root: Root
  readonly uid: number
  readonly gid: number
}

type MountPoint = { readonly path: string; readonly kind: 'dir' | 'file' }
type Copy = { readonly source: string; readonly path: string }
/** An OCI bundle. */
export type Bundle = {
  readonly copies: readonly Copy[]
  readonly config: Record<string, unknown>
  readonly points: readonly MountPoint[]
  readonly links: Root['links']
}

/** Where the agent is in the container. */
export const AGENT_TARGET = '/.ringfence/agent'
/** gVisor's threads are in them too, and none of them is a process of the sandbox. */
const NAMESPACES = ['pid', 'network', 'ipc', 'uts', 'mount', 'cgroup']

/** The OCI bundle of a plan. */
export function bundleOf(plan: Plan, context: BundleContext): Bundle {
  const mounts = [...kernelMounts(plan), ...shownMounts(context), ...planMounts(plan, context)]
  return {
    config: {
      ociVersion: '1.0.2',
      process: processOf(context),
      root: { path: 'root', readonly: true },
      hostname: 'sandbox',
      mounts: mounts.map(({ kind: _, ...mount }) => mount),
      linux: { namespaces: NAMESPACES.map((type) => ({ type })) },
    },
    copies: copiesOf(plan, context),
    points: mounts.map(({ destination, kind }) => ({ path: destination, kind })),
    links: context.root.links,
  }
}

const processOf = ({ uid, gid }: BundleContext): Record<string, unknown> => ({
  terminal: false,
  user: { uid, gid, additionalGids: [] },
  args: [AGENT_TARGET, 'container'],
  env: ['PATH=/usr/bin:/bin'],
  cwd: '/',
  capabilities: { bounding: [], effective: [], inheritable: [], permitted: [], ambient: [] },
  noNewPrivileges: true,
})

type Point = {
  readonly destination: string
  readonly type: string
  readonly source: string
  readonly options: readonly string[]
  readonly kind: 'dir' | 'file'
}

const tmpfs = (destination: string, ...options: string[]): Point => ({
  destination,
  type: 'tmpfs',
  source: 'tmpfs',
  options: ['nosuid', 'nodev', ...options],
  kind: 'dir',
})

const bind = (source: string, destination: string, mode: string, kind: 'dir' | 'file'): Point => ({
  destination,
  type: 'bind',
  source,
  options: ['bind', mode, 'nosuid', 'nodev', 'rprivate'],
  kind,
})

function kernelMounts({ limits }: Plan): readonly Point[] {
  const size = Math.min(limits.memoryMb ?? 1024, limits.diskMb ?? Number.MAX_SAFE_INTEGER)
  return [
    { destination: '/proc', type: 'proc', source: 'proc', options: [], kind: 'dir' },
    tmpfs('/dev'),
    tmpfs('/dev/shm', 'mode=1777', `size=${size}m`),
    tmpfs('/tmp', 'mode=1777', `size=${size}m`),
  ]
}

const shownMounts = ({ root, files }: BundleContext): readonly Point[] => [
  ...root.shown.map(({ source, target, kind }) => bind(source, target, 'ro', kind)),
  // gVisor ignores writes to it; it is hidden anyway.
  bind(`${files}/nothing`, '/proc/sysrq-trigger', 'ro', 'file'),
]

/** The root belongs to the sandbox and is read-only, so small files are copied into it. */
const copiesOf = (plan: Plan, { root, agent, files }: BundleContext): readonly Copy[] => [
  ...root.copied.map((path) => ({ source: path, path })),
  { source: agent, path: AGENT_TARGET },
  ...['passwd', 'group'].map((name) => ({ source: `${files}/${name}`, path: `/etc/${name}` })),
  ...plan.files
    .map(({ target }, index) => ({ source: `${files}/plan-${index}`, path: target }))
    .filter(({ path }) => !isMounted(path, root)),
]

/** Whether a path is inside a directory that is mounted over the root. */
const isMounted = (path: string, { shown }: Root): boolean =>
  ['/dev', '/tmp', '/proc', ...shown.map(({ target }) => target)].some((dir) => path.startsWith(`${dir}/`))

function planMounts(plan: Plan, { files, root }: BundleContext): readonly Point[] {
  return [
    ...plan.files.flatMap(({ target }, index) =>
      isMounted(target, root) ? [bind(`${files}/plan-${index}`, target, 'ro', 'file')] : [],
    ),
    ...[...plan.mounts]
      .sort((a, b) => a.target.length - b.target.length)
      .map((mount: Mount) =>
        bind(mount.real, mount.target, mount.mode, mount.kind === 'dir' ? 'dir' : 'file'),
      ),
    ...plan.masks.map(({ target, kind }) =>
      kind === 'dir'
        ? tmpfs(target, 'ro', 'mode=0', 'size=4k')
        : bind(`${files}/nothing`, target, 'ro', 'file'),
    ),
  ]
}
