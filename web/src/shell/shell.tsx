import { Suspense, useState } from 'react'
import { useShortcuts } from '../browser/keyboard.ts'
import { navigate, usePath } from '../browser/route.ts'
import { Loading } from '../components/page.tsx'
import { Toasts } from '../components/toasts.tsx'
import { ErrorBoundary } from './error-boundary.tsx'
import { CurrentPage, PAGES } from './pages.tsx'
import { ShortcutsDialog } from './shortcuts-dialog.tsx'
import { SideBar } from './side-bar.tsx'

/** The frame around every page: navigation on the side, the page itself, toasts. */
export function Shell({ onSignOut }: { readonly onSignOut: () => void }) {
  const path = usePath()
  const [isHelpOpen, setHelpOpen] = useState(false)
  const openHelp = (): void => setHelpOpen(true)
  useGlobalShortcuts(openHelp)
  return (
    <div className="shell">
      <a className="skip" href="#main">
        Skip to content
      </a>
      <SideBar page={path[0] ?? ''} onHelp={openHelp} onSignOut={onSignOut} />
      <main id="main" tabIndex={-1}>
        <ErrorBoundary page={path.join('/')}>
          <Suspense fallback={<Loading />}>
            <CurrentPage path={path} />
          </Suspense>
        </ErrorBoundary>
      </main>
      <Toasts />
      {isHelpOpen && <ShortcutsDialog onClose={() => setHelpOpen(false)} />}
    </div>
  )
}

function useGlobalShortcuts(openHelp: () => void): void {
  useShortcuts([
    ...PAGES.map(({ path, name, keys }) => ({
      keys,
      label: `Go to ${name}`,
      run: () => navigate(`/${path}`),
    })),
    { keys: 'n', label: 'Create a sandbox', run: () => navigate('/sandboxes/new') },
    {
      keys: '/',
      label: 'Focus the search field',
      run: () => document.querySelector<HTMLElement>('input[type=search]')?.focus(),
    },
    { keys: '?', label: 'Show keyboard shortcuts', run: openHelp },
  ])
}
