import { useState } from 'react'
import { currentTheme, toggleTheme } from '../browser/theme.ts'
import { Link } from '../components/link.tsx'
import { useCurrentInView } from '../components/tabs.tsx'
import { useIdentity, useLiveData } from '../data/live-context.ts'
import { capitalize } from '../format.ts'
import { PAGES } from './pages.tsx'

type Actions = { readonly onHelp: () => void; readonly onSignOut: () => void }

/** Navigation, connection status and the signed-in key. A row on top of the page on narrow screens. */
export function SideBar({ page, ...actions }: { readonly page: string } & Actions) {
  return (
    <aside className="side">
      <Link to="/" className="brand">
        <img src="/console/mark.svg" alt="" width={22} height={22} />
        <span>Ringfence</span>
      </Link>
      <Navigation current={page === 'sandboxes' ? '' : page} />
      <div className="side-foot">
        <ConnectionStatus />
        <Identity />
        <SideButtons {...actions} />
      </div>
    </aside>
  )
}

function Navigation({ current }: { readonly current: string }) {
  const { operator } = useIdentity()
  const { approvals } = useLiveData()
  const row = useCurrentInView(current)
  return (
    <nav aria-label="Pages" ref={row}>
      {PAGES.filter(({ operatorOnly }) => operator || !operatorOnly).map(({ path, name, keys }) => (
        <Link key={path} to={`/${path}`} current={current === path}>
          <span>{name}</span>
          {path === 'approvals' && approvals.length > 0 ? (
            <span className="count">
              {approvals.length}
              <span className="hidden"> pending</span>
            </span>
          ) : (
            <kbd aria-hidden="true">{keys.split(', ')[0]}</kbd>
          )}
        </Link>
      ))}
    </nav>
  )
}

function ConnectionStatus() {
  const { connection, disconnectReason } = useLiveData()
  const reconnecting =
    disconnectReason === '' ? 'Reconnecting…' : `${capitalize(disconnectReason)}; reconnecting…`
  const text = { live: 'Live', broken: reconnecting, connecting: 'Connecting…' }[connection]
  return (
    <div className={`status ${connection}`} role="status">
      <span aria-hidden="true">{connection === 'live' ? '●' : '◌'}</span> {text}
    </div>
  )
}

function Identity() {
  const { operator, tenant, key_id, version } = useIdentity()
  return (
    <div className="identity" title={`Key ${key_id}`}>
      {operator ? 'Operator' : `Tenant ${tenant}`} <span className="dim">· v{version}</span>
    </div>
  )
}

function SideButtons({ onHelp, onSignOut }: Actions) {
  const [theme, setTheme] = useState(currentTheme())
  const other = theme === 'dark' ? 'light' : 'dark'
  return (
    <div className="side-buttons">
      <button
        type="button"
        className="link"
        title={`Switch to the ${other} theme`}
        onClick={() => setTheme(toggleTheme())}
      >
        {other === 'light' ? 'Light' : 'Dark'}
      </button>
      <button type="button" className="link keyboard-only" onClick={onHelp}>
        Help <kbd aria-hidden="true">?</kbd>
      </button>
      <button type="button" className="link" onClick={onSignOut}>
        Sign out
      </button>
    </div>
  )
}
