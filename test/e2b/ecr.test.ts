import { createServer, type IncomingHttpHeaders, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { hasRegistry, smallImage, TestRegistry } from '../images/test-registry.ts'
import { client, type Loose, type World, world } from './kit.ts'

/**
 * `fromAWSRegistry` of E2B's own client. The registry is a real one with a password; Amazon's exchange of an access key for that password
 * is a FAKE on the loopback, because it needs an account. The fake checks what the signature says about itself, not the signature.
 */

const canRun = hasRegistry && process.getuid?.() === 0
/** The user `AWS` with the password `of-the-hour`. */
const USERS = 'AWS:$2y$04$lRzdaL9Jxqsv3K0E97OkguemgaDSIBn0YPLxzSHtCmdtjdsmva.r.\n'
const REGISTRY = '123456789012.dkr.ecr.eu-central-1.amazonaws.com'
const authorization = `Basic ${Buffer.from('AWS:of-the-hour').toString('base64')}`

describe.skipIf(!canRun)('an image of a registry of AWS', () => {
  let registry: TestRegistry
  let amazon: Server
  let here: World
  let e2b: Loose
  const asked: IncomingHttpHeaders[] = []

  beforeAll(async () => {
    registry = await TestRegistry.start(USERS)
    await registry.push('team/app:1', [smallImage()], { authorization })
    amazon = createServer((request, answer) => {
      asked.push(request.headers)
      const isKnown = request.headers.authorization?.includes('Credential=AKIDEXAMPLE/')
      if (!isKnown) return void answer.writeHead(400).end('{"__type":"UnrecognizedClientException"}')
      const authorizationToken = Buffer.from('AWS:of-the-hour').toString('base64')
      answer.end(JSON.stringify({ authorizationData: [{ authorizationToken, expiresAt: 1 }] }))
    }).listen(0, '127.0.0.1')
    await new Promise((resolve) => amazon.once('listening', resolve))
    const { port } = amazon.address() as AddressInfo
    const mirror = (name: string, url: string): string =>
      `[[images.mirror]]\nregistry = "${name}"\nurl = "${url}"\n`
    here = await world(
      mirror(REGISTRY, registry.url) +
        mirror('api.ecr.eu-central-1.amazonaws.com', `http://127.0.0.1:${port}`),
    )
    e2b = await client('e2b')
  }, 60_000)
  afterAll(async () => {
    await here?.close()
    await registry?.close()
    amazon?.close()
  })

  const build = (image: string, accessKeyId = 'AKIDEXAMPLE', region = 'eu-central-1'): Promise<unknown> => {
    const credentials = { accessKeyId, secretAccessKey: 'secret-of-the-tenant', region }
    return e2b.Template.build(e2b.Template().fromAWSRegistry(image, credentials), 'of-aws', here.options)
  }

  test('is pulled with the password that AWS gives for the access key', { timeout: 60_000 }, async () => {
    await build(`${REGISTRY}/team/app:1`)
    expect(asked[0]?.['x-amz-target']).toBe('AmazonEC2ContainerRegistry_V20150921.GetAuthorizationToken')
    expect(asked[0]?.authorization).toMatch(
      /^AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE\/\d{8}\/eu-central-1\/ecr\/aws4_request, SignedHeaders=\S+, Signature=[0-9a-f]{64}$/,
    )
    const sandbox = await e2b.Sandbox.create('of-aws', here.options)
    expect((await sandbox.commands.run('cat /etc/os-release')).stdout).toContain('ID=small')
    await sandbox.kill()
    const { json } = await here.server.call('GET', '/v1/audit?limit=200')
    expect(JSON.stringify(json)).not.toMatch(/secret-of-the-tenant|of-the-hour/)
  })

  test('is refused with another key, region or registry, which then get nothing', async () => {
    await expect(build(`${REGISTRY}/team/app:1`, 'AKIDOTHER')).rejects.toThrow(/AWS answers 400/)
    const before = asked.length
    for (const [image, region] of [
      ['registry.example.com/team/app:1', 'eu-central-1'],
      [`${REGISTRY}/team/app:1`, 'us-east-1'],
      [`${REGISTRY}/team/app:1`, 'evil.example/'],
      [`${REGISTRY}.evil.example/team/app:1`, 'eu-central-1'],
    ] as const)
      await expect(build(image, 'AKIDEXAMPLE', region)).rejects.toThrow(/cannot be used/)
    await expect(build(`${REGISTRY}/team/app:1`, 'AKID\nEXAMPLE')).rejects.toThrow(/id of the access key/)
    expect(asked.length).toBe(before)
  })
})
