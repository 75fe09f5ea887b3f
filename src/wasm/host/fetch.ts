import { safeFetch, type UrlOptions } from '../../egress/fetch/safe-fetch.ts'
import type { Fetcher } from './host-parts.ts'

const MAX_BODY = 512 * 1024

/**
 * The default fetcher: it checks every address and connects to exactly the address it checked.
 * SECURITY: a redirect is returned to the guest. Following it would reach a host that was not granted; the guest
 * must request the new URL itself, and the grants are checked again.
 */
export function publicFetcher(options: Omit<UrlOptions, 'signal'> = {}): Fetcher {
  return async ({ url, method, headers, body }, signal) => {
    const given = body === undefined ? {} : { body }
    const reply = await safeFetch(url, {
      ...options,
      ...given,
      method,
      headers,
      signal,
      maxBytes: MAX_BODY,
      maxRedirects: 0,
    })
    return { status: reply.status, headers: reply.headers, body: reply.body }
  }
}
