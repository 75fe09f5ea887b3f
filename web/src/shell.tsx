import { lazy, Suspense, useState } from 'react'
import { Dialog } from './dialog.tsx'
import { Failsafe } from './failsafe.tsx'
import { allShortcuts, useShortcuts } from './keyboard.ts'
import { useLive, useSnapshot } from './live.ts'
import { Messages } from './messages.tsx'
import { Approvals } from './pages/approvals.tsx'
import { Overview } from './pages/overview.tsx'
import { Trail } from './pages/trail.tsx'
import { navigate, usePath } from './route.ts'
import { theme, toggleTheme } from './theme.ts'
import { Button, Empty, Link, Page, useCurrentInView } from './ui.tsx'

const Sandbox = lazy(() => import('./pages/sandbox.tsx').then(({ Sandbox }) => ({ default: Sandbox })))
const Policy = lazy(() => import('./pages/policy.tsx').then(({ Policy }) => ({ default: Policy })))
const Skills = lazy(() => import('./pages/skills.tsx').then(({ Skills }) => ({ default: Skills })))
const Backends = lazy(() => import('./pages/backends.tsx').then(({ Backends }) => ({ default: Backends })))
const Keys = lazy(() => import('./pages/keys.tsx').then(({ Keys }) => ({ default: Keys })))

/** Each page with its letter after `g`; `operator` pages need the scope `admin`. */
const PAGES = [
  { path: '', name: 'Overview', key: 'o' },
  { path: 'approvals', name: 'Approvals', key: 'a' },
  { path: 'policy', name: 'Policy', key: 'p' },
  { path: 'trail', name: 'Trail', key: 't' },
  { path: 'skills', name: 'Skills', key: 's', operator: true },
  { path: 'backends', name: 'Backends', key: 'b', operator: true },
  { path: 'keys', name: 'Keys', key: 'k', operator: true },
] as const

function Body() {
  const [page = '', ...rest] = usePath()
  switch (page) {
    case '':
      return <Overview />
    case 'sandboxes':
      return <Sandbox key={rest[0]} id={rest[0] ?? ''} tab={rest[1] ?? ''} />
    case 'approvals':
      return <Approvals id={rest[0]} />
    case 'policy':
      return <Policy tab={rest[0] ?? ''} />
    case 'trail':
      return <Trail />
    case 'skills':
      return <Skills />
    case 'backends':
      return <Backends />
    case 'keys':
      return <Keys />
    default:
      return (
        <Page title="Not found">
          <Empty title="There is nothing here">
            <Link to="/">The overview</Link> has everything that runs.
          </Empty>
        </Page>
      )
  }
}

export function Shell({ onSignOut }: { readonly onSignOut: () => void }) {
  const { who } = useLive()
  const { connection, why, approvals } = useSnapshot()
  const path = usePath()
  const [page = ''] = path
  const [help, setHelp] = useState(false)
  const [shade, setShade] = useState(theme())
  const current = page === 'sandboxes' ? '' : page
  const row = useCurrentInView(current)
  const pages = PAGES.filter((one) => who.operator || !('operator' in one))
  useShortcuts([
    ...PAGES.map(({ path, name, key }) => ({
      keys: `g ${key}`,
      does: `go to ${name}`,
      run: () => navigate(`/${path}`),
    })),
    {
      keys: '/',
      does: 'search',
      run: () => document.querySelector<HTMLElement>('input[type=search]')?.focus(),
    },
    { keys: '?', does: 'this help', run: () => setHelp(true) },
  ])
  return (
    <div className="shell">
      <a className="skip" href="#main">
        Skip to content
      </a>
      <aside className="side">
        <Link to="/" className="brand">
          <img src="/console/mark.svg" alt="" width={22} height={22} />
          <span>Ringfence</span>
        </Link>
        <nav aria-label="Pages" ref={row}>
          {pages.map(({ path, name, key }) => (
            <Link key={path} to={`/${path}`} current={current === path}>
              <span>{name}</span>
              {path === 'approvals' && approvals.length > 0 ? (
                <span className="mark urgent">
                  {approvals.length}
                  <span className="hidden"> waiting</span>
                </span>
              ) : (
                <kbd aria-hidden="true">g {key}</kbd>
              )}
            </Link>
          ))}
        </nav>
        <div className="side-foot">
          <Status connection={connection} why={why} />
          <div className="who" title={`key ${who.key_id}`}>
            {who.operator ? 'operator' : `tenant ${who.tenant}`} <span className="dim">· v{who.version}</span>
          </div>
          <div className="side-buttons">
            <button type="button" className="link" onClick={() => setShade(toggleTheme())}>
              {shade === 'dark' ? 'Light' : 'Dark'}
            </button>
            <button type="button" className="link for-keyboards" onClick={() => setHelp(true)}>
              Help <kbd aria-hidden="true">?</kbd>
            </button>
            <button type="button" className="link" onClick={onSignOut}>
              Sign out
            </button>
          </div>
        </div>
      </aside>
      <main id="main" tabIndex={-1}>
        <Failsafe name={path.join('/')}>
          <Suspense fallback={<div className="dim">…</div>}>
            <Body />
          </Suspense>
        </Failsafe>
      </main>
      <Messages />
      {help && <Help onClose={() => setHelp(false)} />}
    </div>
  )
}

function Status({ connection, why }: { readonly connection: string; readonly why: string }) {
  const again = why === '' ? 'reconnecting…' : `${why}; reconnecting…`
  const text = connection === 'live' ? 'live' : connection === 'broken' ? again : 'connecting…'
  return (
    <div className={`status ${connection}`} role="status">
      <span aria-hidden="true">{connection === 'live' ? '●' : '◌'}</span> {text}
    </div>
  )
}

function Help({ onClose }: { readonly onClose: () => void }) {
  const list = [...new Map(allShortcuts().map((one) => [one.keys, one])).values()]
  return (
    <Dialog title="Keyboard" onClose={onClose}>
      <dl className="keys">
        {list.map(({ keys, does }) => (
          <div key={keys}>
            <dt>
              {keys.split(', ').map((one) => (
                <kbd key={one}>{one}</kbd>
              ))}
            </dt>
            <dd>{does}</dd>
          </div>
        ))}
        <div>
          <dt>
            <kbd>Enter</kbd>
          </dt>
          <dd>open what has the focus</dd>
        </div>
      </dl>
      <div className="buttons">
        <Button onClick={onClose} hint="Esc">
          Close
        </Button>
      </div>
    </Dialog>
  )
}
