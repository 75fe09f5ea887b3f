/** The proxy's address and the certificates to trust. */
export type ProxyEnvironmentOptions = {
  /** The proxy's address inside the sandbox; default: loopback. */
  readonly host?: string
  readonly credentials?: { readonly user: string; readonly password: string } | undefined
  /** The path of `guest/node/proxy.cjs` in the sandbox; without it, Node 20's `fetch` does not use the proxy. */
  readonly nodePreload?: string | undefined
  /** The existing value of `NODE_OPTIONS`. */
  readonly nodeOptions?: string | undefined
}

/** Addresses of the sandbox itself; programs that were told to listen everywhere are also called at 0.0.0.0. */
const LOOPBACK = 'localhost,127.0.0.1,::1,0.0.0.0'

/** Environment variables that configure the proxy for programs in the sandbox: curl, git, npm, pip, Node and others. */
export function proxyEnvironment(
  port: number,
  { host = '127.0.0.1', credentials, nodePreload, nodeOptions }: ProxyEnvironmentOptions = {},
): Record<string, string> {
  const user =
    credentials === undefined
      ? ''
      : `${encodeURIComponent(credentials.user)}:${encodeURIComponent(credentials.password)}@`
  const http = `http://${user}${host}:${port}`
  const socks = `socks5h://${user}${host}:${port}`
  return {
    HTTP_PROXY: http,
    HTTPS_PROXY: http,
    ALL_PROXY: socks,
    NO_PROXY: LOOPBACK,
    http_proxy: http,
    https_proxy: http,
    all_proxy: socks,
    no_proxy: LOOPBACK,
    npm_config_proxy: http,
    npm_config_https_proxy: http,
    npm_config_noproxy: LOOPBACK,
    YARN_HTTP_PROXY: http,
    YARN_HTTPS_PROXY: http,
    NODE_USE_ENV_PROXY: '1',
    ...(nodePreload === undefined
      ? {}
      : { NODE_OPTIONS: [nodeOptions, `--require=${quoted(nodePreload)}`].filter(Boolean).join(' ') }),
  }
}

/** `NODE_OPTIONS` is split at spaces outside double quotes. */
const quoted = (path: string): string => (/[\s"\\]/.test(path) ? `"${path.replace(/["\\]/g, '\\$&')}"` : path)

/** Environment variables that make programs trust the certificate bundle at this path (the system's plus the sandbox's). */
export const certificateEnvironment = (bundle: string): Record<string, string> => ({
  SSL_CERT_FILE: bundle,
  CURL_CA_BUNDLE: bundle,
  REQUESTS_CA_BUNDLE: bundle,
  PIP_CERT: bundle,
  GIT_SSL_CAINFO: bundle,
  NODE_EXTRA_CA_CERTS: bundle,
  npm_config_cafile: bundle,
  DENO_CERT: bundle,
  AWS_CA_BUNDLE: bundle,
  CARGO_HTTP_CAINFO: bundle,
})

/** The content of that bundle. */
export const certificateBundle = (system: string, own: string): string =>
  `${system}${system.endsWith('\n') || system === '' ? '' : '\n'}${own}`
