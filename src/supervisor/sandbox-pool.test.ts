import { expect, test } from 'vitest'
import type { Spec } from '../model/spec.ts'
import type { OpenSandbox } from './open-sandbox.ts'
import { SandboxPool } from './sandbox-pool.ts'

/** A pool that opens fake sandboxes, and the list of what it opened. */
function pool(prepared = 1) {
  const opened: Spec[] = []
  const open = async (spec: Spec): Promise<OpenSandbox> => {
    opened.push(spec)
    const sandbox = {
      layers: async () => [],
      ended: new Promise(() => {}),
      close: async () => {},
      plan: { network: {} },
    }
    return sandbox as unknown as OpenSandbox
  }
  return { opened, kept: new SandboxPool({ open, policyHash: () => 'one', prepared, refillMs: 5 }, []) }
}
const settled = (): Promise<void> => new Promise((resolve) => setTimeout(resolve, 60))
const plain: Spec = { env: {}, private: ['/home/user'], limits: { diskMb: 1 } }

test('a prepared sandbox is handed out once, to a client that may use it, and replaced', async () => {
  const { kept, opened } = pool()
  const ready: OpenSandbox[] = []
  const prepare = async (sandbox: OpenSandbox): Promise<void> => void ready.push(sandbox)
  expect(await kept.take(plain, () => true, prepare)).toBeUndefined()
  await settled()
  expect(await kept.take(plain, () => false, prepare)).toBeUndefined()
  expect(await kept.take(plain, () => true)).toBeUndefined()
  expect(await kept.take(plain, () => true, prepare)).toBe(ready[0])
  expect(await kept.take(plain, () => true, prepare)).toBeUndefined()
  await settled()
  expect(opened).toHaveLength(2)
  expect(await kept.take(plain, () => true, prepare)).toBe(ready[1])
  await kept.close()
})

test.each<[string, Spec]>([
  ['variables', { ...plain, env: { KEY: 'value' } }],
  ['headers', { ...plain, network: { headers: [{ host: 'a.example', headers: { authorization: 'x' } }] } }],
  ['secrets', { ...plain, secrets: [] }],
  ['mounts', { ...plain, mounts: [] } as unknown as Spec],
  ['a template', { ...plain, template: 'mine' }],
  ['a field that pooled sandboxes do not support', { ...plain, volumes: [] } as unknown as Spec],
])('no sandbox with %s is prepared', async (_, spec) => {
  const { kept, opened } = pool()
  await kept.take(
    spec,
    () => true,
    async () => {},
  )
  await settled()
  expect(opened).toEqual([])
})

test('no sandboxes are prepared if the operator configured none', async () => {
  const { kept, opened } = pool(0)
  await kept.take(
    plain,
    () => true,
    async () => {},
  )
  await settled()
  expect(opened).toEqual([])
})
