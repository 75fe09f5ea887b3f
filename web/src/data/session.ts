import { ConsoleClient, signIn } from '../../../src/client/console.ts'
import { SandboxError } from '../../../src/model/errors.ts'

/** The page's half of a session. SECURITY: useless without the cookie, which no script can read. */
const STORAGE_KEY = 'ringfence.page'

export function storedClient(): ConsoleClient | undefined {
  const page = localStorage.getItem(STORAGE_KEY)
  return page === null ? undefined : new ConsoleClient(location.origin, page)
}

export function clearSession(): void {
  localStorage.removeItem(STORAGE_KEY)
}

type Credential = { readonly link: string } | { readonly key: string }

async function startSession(credential: Credential): Promise<ConsoleClient> {
  const { page } = await signIn(location.origin, credential)
  localStorage.setItem(STORAGE_KEY, page)
  return new ConsoleClient(location.origin, page)
}

export const signInWithKey = (key: string): Promise<ConsoleClient> => startSession({ key })
export const signInWithLink = (link: string): Promise<ConsoleClient> => startSession({ link })

/** The secret of a sign-in link is in the URL's fragment; it is removed from the address bar before anything else runs. */
export function takeLinkFromAddress(): string | undefined {
  const link = /^#([\w-]{43})$/.exec(location.hash)?.[1]
  if (location.hash !== '') history.replaceState(null, '', location.pathname + location.search)
  return link
}

export const isUnauthenticated = (error: unknown): boolean =>
  error instanceof SandboxError && error.code === 'unauthenticated'
