import { lazy } from 'react'
import { EmptyState } from '../components/empty-state.tsx'
import { Link } from '../components/link.tsx'
import { Page } from '../components/page.tsx'
import { Approvals } from '../pages/approvals/approvals.tsx'
import { AuditLog } from '../pages/audit-log/audit-log.tsx'
import { Overview } from '../pages/overview/overview.tsx'

const Sandbox = lazy(() =>
  import('../pages/sandbox/sandbox.tsx').then(({ Sandbox }) => ({ default: Sandbox })),
)
const NewSandbox = lazy(() =>
  import('../pages/new-sandbox/new-sandbox.tsx').then(({ NewSandbox }) => ({ default: NewSandbox })),
)
const Policy = lazy(() => import('../pages/policy/policy.tsx').then(({ Policy }) => ({ default: Policy })))
const Templates = lazy(() =>
  import('../pages/resources/templates.tsx').then(({ Templates }) => ({ default: Templates })),
)
const Snapshots = lazy(() =>
  import('../pages/resources/snapshots.tsx').then(({ Snapshots }) => ({ default: Snapshots })),
)
const Volumes = lazy(() =>
  import('../pages/resources/volumes.tsx').then(({ Volumes }) => ({ default: Volumes })),
)
const Webhooks = lazy(() =>
  import('../pages/resources/webhooks.tsx').then(({ Webhooks }) => ({ default: Webhooks })),
)
const Skills = lazy(() => import('../pages/skills/skills.tsx').then(({ Skills }) => ({ default: Skills })))
const Backends = lazy(() =>
  import('../pages/backends/backends.tsx').then(({ Backends }) => ({ default: Backends })),
)
const Nodes = lazy(() => import('../pages/nodes/nodes.tsx').then(({ Nodes }) => ({ default: Nodes })))
const Tenants = lazy(() =>
  import('../pages/tenants/tenants.tsx').then(({ Tenants }) => ({ default: Tenants })),
)
const Settings = lazy(() =>
  import('../pages/settings/settings.tsx').then(({ Settings }) => ({ default: Settings })),
)
const Egress = lazy(() => import('../pages/egress/egress.tsx').then(({ Egress }) => ({ default: Egress })))
const Keys = lazy(() => import('../pages/keys/keys.tsx').then(({ Keys }) => ({ default: Keys })))

type PageEntry = {
  readonly path: string
  readonly name: string
  readonly keys: string
  /** Needs the scope `admin`. */
  readonly operatorOnly?: boolean
}

/** The pages in the navigation, each with its shortcut. `g t` is the former shortcut of the audit log. */
export const PAGES: readonly PageEntry[] = [
  { path: '', name: 'Overview', keys: 'g o' },
  { path: 'approvals', name: 'Approvals', keys: 'g a' },
  { path: 'policy', name: 'Policy', keys: 'g p' },
  { path: 'trail', name: 'Audit log', keys: 'g l, g t' },
  { path: 'egress', name: 'Egress', keys: 'g e' },
  { path: 'templates', name: 'Templates', keys: 'g m' },
  { path: 'snapshots', name: 'Snapshots', keys: 'g n' },
  { path: 'volumes', name: 'Volumes', keys: 'g v' },
  { path: 'webhooks', name: 'Webhooks', keys: 'g w' },
  { path: 'skills', name: 'Skills', keys: 'g s', operatorOnly: true },
  { path: 'backends', name: 'Backends', keys: 'g b', operatorOnly: true },
  { path: 'nodes', name: 'Nodes', keys: 'g d', operatorOnly: true },
  { path: 'tenants', name: 'Tenants', keys: 'g u', operatorOnly: true },
  { path: 'keys', name: 'Keys', keys: 'g k', operatorOnly: true },
  { path: 'settings', name: 'Settings', keys: 'g c', operatorOnly: true },
]

/** The page that a path leads to. */
export function CurrentPage({ path: [page = '', ...rest] }: { readonly path: readonly string[] }) {
  switch (page) {
    case '':
      return <Overview />
    case 'sandboxes':
      if (rest[0] === 'new') return <NewSandbox template={rest[1] ?? ''} />
      return <Sandbox key={rest[0]} id={rest[0] ?? ''} tab={rest[1] ?? ''} />
    case 'approvals':
      return <Approvals id={rest[0]} />
    case 'policy':
      return <Policy tab={rest[0] ?? ''} />
    case 'trail':
      return <AuditLog />
    case 'templates':
      return <Templates />
    case 'snapshots':
      return <Snapshots />
    case 'volumes':
      return <Volumes />
    case 'webhooks':
      return <Webhooks />
    case 'skills':
      return <Skills />
    case 'backends':
      return <Backends />
    case 'nodes':
      return <Nodes />
    case 'egress':
      return <Egress />
    case 'tenants':
      return <Tenants />
    case 'settings':
      return <Settings />
    case 'keys':
      return <Keys />
    default:
      return <NotFound />
  }
}

const NotFound = () => (
  <Page title="Page not found">
    <EmptyState title="This page does not exist">
      <Link to="/">Go to the overview</Link>
    </EmptyState>
  </Page>
)
