/** Dark or light: the system's preference until the user picks one. */
const STORAGE_KEY = 'ringfence.theme'
export type Theme = 'dark' | 'light'

const systemTheme = (): Theme => (matchMedia('(prefers-color-scheme: light)').matches ? 'light' : 'dark')

export function currentTheme(): Theme {
  const stored = localStorage.getItem(STORAGE_KEY)
  return stored === 'dark' || stored === 'light' ? stored : systemTheme()
}

export function applyTheme(): void {
  document.documentElement.dataset.theme = currentTheme()
}

export function toggleTheme(): Theme {
  localStorage.setItem(STORAGE_KEY, currentTheme() === 'dark' ? 'light' : 'dark')
  applyTheme()
  window.dispatchEvent(new Event('themechange'))
  return currentTheme()
}

matchMedia('(prefers-color-scheme: light)').addEventListener('change', applyTheme)
