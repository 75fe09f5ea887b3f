import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { loadAllYaml } from '@kubernetes/client-node'
import { parse } from 'smol-toml'
import { expect, test } from 'vitest'
import { AUTHORITY_SECRET } from '../../src/backends/kubernetes/authority.ts'
import { RIGHTS } from '../../src/backends/kubernetes/cluster-api.ts'
import { POLICY_NAME, SANDBOX } from '../../src/backends/kubernetes/launch.ts'
import { settingsOf } from '../../src/backends/kubernetes/settings.ts'
import { configShape } from '../../src/model/config.ts'
import { packageRoot } from '../conformance/world.ts'

type Rule = { readonly apiGroups: string[]; readonly resources: string[]; readonly verbs: string[] }
type Manifest = {
  readonly kind: string
  readonly metadata: { readonly name: string }
  readonly rules?: readonly Rule[]
  readonly spec?: Record<string, unknown>
  readonly data?: Record<string, string>
}

const read = (name: string): Manifest[] =>
  loadAllYaml(
    readFileSync(join(packageRoot(), 'deploy', 'kubernetes', 'sandboxes', name), 'utf8'),
  ) as Manifest[]

test('the role grants exactly what the backend uses', () => {
  const role = read('rbac.yaml').find(({ kind }) => kind === 'Role')
  const granted = (role?.rules ?? []).flatMap(({ apiGroups, resources, verbs }) =>
    apiGroups.flatMap((group) =>
      resources.flatMap((resource) => verbs.map((verb) => `${verb} ${group}/${resource}`)),
    ),
  )
  expect(granted.sort()).toEqual(
    RIGHTS.map(({ verb, group, resource }) => `${verb} ${group}/${resource}`).sort(),
  )
})

test('of secrets only the authority can be read', () => {
  const role = read('rbac.yaml').find(({ kind }) => kind === 'Role')
  const reading = role?.rules?.filter(
    ({ resources, verbs }) => resources.includes('secrets') && verbs.includes('get'),
  )
  expect(reading).toMatchObject([{ resourceNames: [AUTHORITY_SECRET], verbs: ['get'] }])
})

test('every call of the backend is one of those rights', () => {
  const source = readFileSync(join(packageRoot(), 'src/backends/kubernetes/cluster-api.ts'), 'utf8')
  const calls = [...source.matchAll(/\.(create|delete|list|patch|read|replace)Namespaced(\w+)\(/g)]
  const verbs: Record<string, string> = { read: 'get', replace: 'update' }
  const plural = (kind: string): string =>
    `${kind.toLowerCase()}s`.replace('policys', 'policies').replace(/^eventss$/, 'events')
  const used = new Set(calls.map(([, verb = '', kind = '']) => `${verbs[verb] ?? verb} ${plural(kind)}`))
  expect([...used, 'watch pods'].sort()).toEqual(
    [...new Set(RIGHTS.map(({ verb, resource }) => `${verb} ${resource}`))].sort(),
  )
})

test('the policy is the one that the backend would create, for the server alone', () => {
  const [policy] = read('network-policy.yaml')
  expect(policy?.metadata.name).toBe(POLICY_NAME)
  expect(policy?.spec).toMatchObject({ podSelector: { matchLabels: SANDBOX }, egress: [] })
})

test('the configuration is valid', () => {
  const text = read('config.yaml')[0]?.data?.['ringfence.toml'] ?? ''
  const { kubernetes } = configShape.parse(parse(text), '')
  expect(kubernetes && settingsOf(kubernetes)).toMatchObject({ namespace: 'ringfence-sandboxes', port: 7443 })
})
