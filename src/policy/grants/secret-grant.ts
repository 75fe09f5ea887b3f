import { SandboxError } from '../../model/errors.ts'
import { parseAddress } from '../network/address.ts'
import { isHostName } from '../network/hosts.ts'

/** A secret that the proxy inserts into requests to one host. */
export type SecretGrant = {
  /** The variable inside the sandbox; it contains a placeholder. */
  readonly name: string
  /** The host's variable; it contains the value. */
  readonly variable: string
  readonly host: string
  readonly port: number
  /** `http` only if written explicitly: the value is then sent unencrypted. */
  readonly scheme: 'https' | 'http'
}

const GRANT = /^([A-Za-z_]\w*)=([A-Za-z_]\w*)@(?:(https?):\/\/)?([A-Za-z0-9._-]+)(?::([1-9]\d{0,4}))?$/

/** Parses `NAME=ENVVAR@HOST[:PORT]`; `@http://HOST` requests plain HTTP explicitly. */
export function parseSecretGrant(text: string): SecretGrant {
  const [, name, variable, scheme = 'https', rawHost, portText] = GRANT.exec(text) ?? []
  const host = (rawHost ?? '').toLowerCase().replace(/\.$/, '')
  const port = portText === undefined ? (scheme === 'http' ? 80 : 443) : Number(portText)
  const named = isHostName(host) && parseAddress(host) === undefined
  if (name === undefined || variable === undefined || !named || port > 65_535) {
    // SECURITY: the text after `=` may be a pasted secret; the error does not repeat it.
    throw new SandboxError('invalid-input', 'a secret is not written as `NAME=ENVVAR@HOST`', {
      hint: 'write `--secret TOKEN=HOST_TOKEN@api.example.com`: a variable inside, one of yours, one host',
    })
  }
  return { name, variable, host, port, scheme: scheme === 'http' ? 'http' : 'https' }
}
