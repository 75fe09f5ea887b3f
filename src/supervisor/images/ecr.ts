import { safeFetch } from '../../egress/fetch/safe-fetch.ts'
import { SandboxError } from '../../model/errors.ts'
import type { Signer } from '../archives/s3.ts'
import { type ImageName, imageText } from './image-name.ts'
import { type Credentials, endpointOf, type Mirror } from './registry.ts'

/** An access key of AWS, which is exchanged for a password of its registry. */
export type AwsCredentials = {
  readonly accessKeyId: string
  readonly secretAccessKey: string
  readonly region: string
}

const ASK_MS = 30_000
const REGION = /^[a-z]{2}(-[a-z]{2,16}){1,3}-\d{1,2}$/
const TARGET = 'AmazonEC2ContainerRegistry_V20150921.GetAuthorizationToken'

/**
 * The user and password that Amazon's registry gives for an access key. SECURITY: the signed request goes to Amazon's address for the
 * region, and the password to a registry of that region only, or to the mirrors that the operator named for them.
 */
export async function ecrCredentials(
  name: ImageName,
  { accessKeyId, secretAccessKey, region }: AwsCredentials,
  mirrors: readonly Mirror[],
  load: () => Promise<Signer>,
): Promise<Credentials> {
  if (!REGION.test(region)) throw refused(name, 'the region is not one of AWS')
  // It becomes part of a header; the error of an invalid header would show the signature.
  if (!/^\w{1,128}$/.test(accessKeyId)) throw refused(name, 'the id of the access key is not one of AWS')
  const registry = new RegExp(`^\\d{12}\\.dkr\\.ecr\\.${region}\\.amazonaws\\.com(\\.cn)?$`)
  if (!registry.test(name.registry)) throw refused(name, `it is not in a registry of AWS in \`${region}\``)
  const { AwsClient } = await load().catch((cause: unknown) => {
    throw new SandboxError('unsupported', 'credentials of AWS need the package `aws4fetch` on the server', {
      hint: 'install it beside ringfence: `npm install aws4fetch`',
      cause,
    })
  })
  const host = `api.ecr.${region}.amazonaws.com${name.registry.endsWith('.cn') ? '.cn' : ''}`
  const { base, allowPrivate } = endpointOf(host, mirrors)
  const client = new AwsClient({ accessKeyId, secretAccessKey, region, service: 'ecr', retries: 0 })
  const type = { 'content-type': 'application/x-amz-json-1.1', 'x-amz-target': TARGET }
  const signed = await client.sign(`${base}/`, { method: 'POST', headers: type, body: '{}' })
  const headers = Object.fromEntries([...signed.headers].filter(([header]) => header !== 'host'))
  const options = { method: 'POST', headers, body: '{}', timeoutMs: ASK_MS, allowPrivate }
  const { status, body } = await safeFetch(`${base}/`, options)
  if (status !== 200) throw refused(name, `AWS answers ${status} to the access key`)
  return passwordIn(name, Buffer.from(body).toString('utf8'))
}

/** `authorizationToken` is the base64 of `user:password`. */
function passwordIn(name: ImageName, text: string): Credentials {
  const token = /"authorizationToken"\s*:\s*"([A-Za-z0-9+/=]{1,65536})"/.exec(text)?.[1] ?? ''
  const [username, ...rest] = Buffer.from(token, 'base64').toString('utf8').split(':')
  if (!username || rest.length === 0) throw refused(name, 'AWS gave no password')
  return { username, password: rest.join(':') }
}

const refused = (name: ImageName, why: string): SandboxError =>
  new SandboxError('invalid-input', `the image \`${imageText(name)}\` cannot be used: ${why}`, {
    hint: 'check the name of the image, the region and the access key',
  })
