/** Dark or light: the system's, until a person says otherwise. */
const KEPT = 'ringfence.theme'
export type Theme = 'dark' | 'light'

const preferred = (): Theme => (matchMedia('(prefers-color-scheme: light)').matches ? 'light' : 'dark')

export function theme(): Theme {
  const kept = localStorage.getItem(KEPT)
  return kept === 'dark' || kept === 'light' ? kept : preferred()
}

export function applyTheme(): void {
  document.documentElement.dataset.theme = theme()
}

export function toggleTheme(): Theme {
  localStorage.setItem(KEPT, theme() === 'dark' ? 'light' : 'dark')
  applyTheme()
  window.dispatchEvent(new Event('themechange'))
  return theme()
}

matchMedia('(prefers-color-scheme: light)').addEventListener('change', applyTheme)
