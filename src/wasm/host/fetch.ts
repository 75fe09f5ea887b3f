import { safeFetch, type UrlOptions } from '../../egress/safe-fetch.ts'
import type { Fetcher } from './host-parts.ts'

const MAX_BODY = 512 * 1024

/**
 * The fetcher of the product: every address judged, the connection made to the judged one.
 * SECURITY: a redirect goes back to the guest as it is. Following it would reach a host that nobody granted; the
 * guest asks again, and the grants are asked again.
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
    return { status: reply.status, headers: reply.headers, body: new TextDecoder().decode(reply.body) }
  }
}
