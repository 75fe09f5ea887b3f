import { describe, expect, it } from 'vitest'
import { certificateBundle, certificateEnvironment, proxyEnvironment } from './proxy-environment.ts'

describe('the environment', () => {
  it('configures the proxy for every kind of program', () => {
    const env = proxyEnvironment(3128, { nodePreload: '/x y/proxy.cjs', nodeOptions: '--no-warnings' })
    expect(env).toMatchObject({
      HTTPS_PROXY: 'http://127.0.0.1:3128',
      http_proxy: 'http://127.0.0.1:3128',
      ALL_PROXY: 'socks5h://127.0.0.1:3128',
      NO_PROXY: 'localhost,127.0.0.1,::1,0.0.0.0',
      NODE_USE_ENV_PROXY: '1',
      NODE_OPTIONS: '--no-warnings --require="/x y/proxy.cjs"',
    })
    expect(proxyEnvironment(1, { credentials: { user: 'a:b', password: 'c@d' } }).HTTP_PROXY).toBe(
      'http://a%3Ab:c%40d@127.0.0.1:1',
    )
  })

  it('contains the path of the certificate bundle', () => {
    expect(certificateEnvironment('/b.pem')).toMatchObject({
      SSL_CERT_FILE: '/b.pem',
      NODE_EXTRA_CA_CERTS: '/b.pem',
    })
    expect(certificateBundle('A', 'B')).toBe('A\nB')
  })
})
