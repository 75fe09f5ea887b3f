import { createHash, timingSafeEqual } from 'node:crypto'
import { type Headers, valuesOf } from './http/message.ts'

/** What a client must show when the proxy listens where others could reach it. */
export type Credentials = { readonly user: string; readonly password: string }

const digest = (text: string): Buffer => createHash('sha256').update(text).digest()

/** Do the two texts agree? Takes as long for every wrong one. */
export const isSameText = (a: string, b: string): boolean => timingSafeEqual(digest(a), digest(b))

/** Does the request carry the credentials, if any are wanted? */
export function hasCredentials(headers: Headers, wanted: Credentials | undefined): boolean {
  if (wanted === undefined) return true
  const [shown, ...more] = valuesOf(headers, 'proxy-authorization')
  const expected = `Basic ${Buffer.from(`${wanted.user}:${wanted.password}`).toString('base64')}`
  return shown !== undefined && more.length === 0 && isSameText(shown, expected)
}
