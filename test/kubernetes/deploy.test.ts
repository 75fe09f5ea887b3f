import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { loadAllYaml } from '@kubernetes/client-node'
import { parse } from 'smol-toml'
import { expect, test } from 'vitest'
import { RIGHTS, type Right, TENANT_RIGHTS } from '../../src/backends/kubernetes/cluster-api.ts'
import { POLICY_NAME, SANDBOX } from '../../src/backends/kubernetes/launch.ts'
import { settingsOf } from '../../src/backends/kubernetes/settings.ts'
import { configShape } from '../../src/model/config.ts'
import { packageRoot } from '../conformance/world.ts'

type Rule = {
  readonly apiGroups: string[]
  readonly resources: string[]
  readonly verbs: string[]
  readonly resourceNames?: string[]
}
type Manifest = {
  readonly kind: string
  readonly metadata: { readonly name: string }
  readonly rules?: readonly Rule[]
  readonly spec?: Record<string, unknown>
  readonly data?: Record<string, string>
}

const read = (name: string, folder = 'sandboxes'): Manifest[] =>
  loadAllYaml(readFileSync(join(packageRoot(), 'deploy', 'kubernetes', folder, name), 'utf8')) as Manifest[]

const ROLES = [
  { folder: 'sandboxes', kind: 'Role', rights: RIGHTS },
  { folder: 'sandboxes-tenants', kind: 'ClusterRole', rights: [...RIGHTS, ...TENANT_RIGHTS.create] },
] as const

const roleIn = ({ folder, kind: wanted }: (typeof ROLES)[number]): Manifest | undefined =>
  read('rbac.yaml', folder).find(({ kind }) => kind === wanted)

const textOf = ({ verb, group, resource, name }: Right): string =>
  `${verb} ${group}/${resource}${name === undefined ? '' : ` ${name}`}`

test.each(ROLES)('the $kind grants exactly the permissions that the backend uses', (one) => {
  const granted = (roleIn(one)?.rules ?? []).flatMap(({ apiGroups, resources, verbs, resourceNames }) =>
    apiGroups.flatMap((group) =>
      resources.flatMap((resource) =>
        verbs.flatMap((verb) =>
          (resourceNames ?? [undefined]).map((name) =>
            textOf({ verb, group, resource, ...(name === undefined ? {} : { name }) }),
          ),
        ),
      ),
    ),
  )
  expect(granted.sort()).toEqual(one.rights.map(textOf).sort())
})

test.each(ROLES)('the $kind can read no secret except the authority', (one) => {
  const reading = one.rights.filter(({ resource, verb }) => resource === 'secrets' && verb === 'get')
  expect(reading).toMatchObject([{ name: 'ringfence-authority' }])
})

test('the permission list covers every API call of the backend', () => {
  const source = readFileSync(join(packageRoot(), 'src/backends/kubernetes/cluster-api.ts'), 'utf8')
  const calls = [
    ...source.matchAll(/#?\w+\.(create|delete|list|patch|read|replace)Namespaced(\w+)\(/g),
    ...source.matchAll(/#core\.(create|read)(Namespace)\(/g),
  ]
  const verbs: Record<string, string> = { read: 'get', replace: 'update' }
  const plural = (kind: string): string =>
    `${kind.toLowerCase()}s`.replace('policys', 'policies').replace(/^eventss$/, 'events')
  const used = new Set(calls.map(([, verb = '', kind = '']) => `${verbs[verb] ?? verb} ${plural(kind)}`))
  expect([...used, 'watch pods'].sort()).toEqual(
    [
      ...new Set(
        [...RIGHTS, ...TENANT_RIGHTS.create, ...TENANT_RIGHTS.use].map(
          ({ verb, resource }) => `${verb} ${resource}`,
        ),
      ),
    ].sort(),
  )
})

test('the NetworkPolicy is the one that the backend would create', () => {
  const [policy] = read('network-policy.yaml')
  expect(policy?.metadata.name).toBe(POLICY_NAME)
  expect(policy?.spec).toMatchObject({ podSelector: { matchLabels: SANDBOX }, egress: [] })
})

test('replicas: the configuration is valid with the values that the container adds, and the key is readable by its owner only', () => {
  const text = read('config.yaml', 'sandboxes-replicas')[0]?.data?.['ringfence.toml'] ?? ''
  const added = `${text.trimEnd()}\nurl = "https://10.0.0.1:4300"\nname = "pod"\n`
  expect(configShape.parse(parse(added), '').cluster).toMatchObject({ name: 'pod' })
  const [server] = read('server.yaml', 'sandboxes-replicas')
  expect(JSON.stringify(server?.spec)).toContain('"defaultMode":256')
})

test('the example configuration is valid', () => {
  const text = read('config.yaml')[0]?.data?.['ringfence.toml'] ?? ''
  const { kubernetes } = configShape.parse(parse(text), '')
  expect(kubernetes && settingsOf(kubernetes)).toMatchObject({ namespace: 'ringfence-sandboxes', port: 7443 })
})
