import { ConsoleClient, signIn } from '../../src/client/console.ts'
import { SandboxError } from '../../src/model/errors.ts'

/** The page's half of the session. SECURITY: it opens nothing without the cookie, which no script can read. */
const KEPT = 'ringfence.page'

export function kept(): ConsoleClient | undefined {
  const page = localStorage.getItem(KEPT)
  return page === null ? undefined : new ConsoleClient(location.origin, page)
}

export function forget(): void {
  localStorage.removeItem(KEPT)
}

async function enter(by: { readonly link: string } | { readonly key: string }): Promise<ConsoleClient> {
  const { page } = await signIn(location.origin, by)
  localStorage.setItem(KEPT, page)
  return new ConsoleClient(location.origin, page)
}

export const enterByKey = (key: string): Promise<ConsoleClient> => enter({ key })

/** The secret of a sign-in link stands behind `#`; it is taken out of the address before anything else happens. */
export function linkInAddress(): string | undefined {
  const link = /^#([\w-]{43})$/.exec(location.hash)?.[1]
  if (location.hash !== '') history.replaceState(null, '', location.pathname + location.search)
  return link
}

export const enterByLink = (link: string): Promise<ConsoleClient> => enter({ link })

export const isSignedOut = (error: unknown): boolean =>
  error instanceof SandboxError && error.code === 'unauthenticated'

/** One line for people. */
export function said(error: unknown): string {
  if (error instanceof SandboxError)
    return error.hint ? `${error.message}. ${capital(error.hint)}` : error.message
  return error instanceof Error ? error.message : String(error)
}

const capital = (text: string): string => text.charAt(0).toUpperCase() + text.slice(1)
