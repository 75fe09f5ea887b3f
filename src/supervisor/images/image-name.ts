import { SandboxError } from '../../model/errors.ts'

/** The full name of an image: `docker.io/library/debian:12`. */
export type ImageName = {
  readonly registry: string
  readonly repository: string
  /** A tag, or `sha256:…`. */
  readonly reference: string
}

const HOST = /^[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:\d{1,5})?$/i
const REPOSITORY = /^[a-z0-9]+([._-]+[a-z0-9]+)*(\/[a-z0-9]+([._-]+[a-z0-9]+)*)*$/
const TAG = /^\w[\w.-]{0,127}$/
/** The digest of a blob or manifest. */
export const DIGEST = /^sha256:[0-9a-f]{64}$/

/** Parses a name as container engines do: without a registry it is Docker Hub's, without a tag `latest`. */
export function parseImageName(text: string): ImageName {
  const [, name = '', , tag, , digest] = /^(.*?)(:([^:/@]+))?(@(.+))?$/.exec(text.trim()) ?? []
  const reference = digest ?? tag ?? 'latest'
  const [first = '', ...rest] = name.split('/')
  const isHost = rest.length > 0 && (/[.:]/.test(first) || first === 'localhost')
  const registry = isHost ? first.toLowerCase() : 'docker.io'
  const path = isHost ? rest.join('/') : name
  const repository = registry === 'docker.io' && !path.includes('/') ? `library/${path}` : path
  const isValid =
    HOST.test(registry) &&
    repository.length <= 255 &&
    REPOSITORY.test(repository) &&
    (digest === undefined ? TAG.test(reference) : DIGEST.test(reference))
  if (isValid) return { registry, repository, reference }
  throw new SandboxError('invalid-input', `\`${text.slice(0, 256)}\` is not the name of an image`, {
    hint: 'use `name:tag`, `registry.example.com/path/name:tag` or `name@sha256:…`',
  })
}

/** The name in full. */
export const imageText = ({ registry, repository, reference }: ImageName): string =>
  `${registry}/${repository}${reference.startsWith('sha256:') ? '@' : ':'}${reference}`
