import { afterAll, beforeAll, expect, test } from 'vitest'
import { compose } from '../../src/compose/compose.ts'
import { makeTestHost, sleep, type TestHost, until } from './persistent-sandbox.ts'

/** The agent ends its sandbox when the lease is not renewed, by its own clock. */

let testHost: TestHost
beforeAll(() => {
  testHost = makeTestHost('lease')
})
afterAll(() => testHost.drop())

test('the agent ends its sandbox when the lease is not renewed in time', async () => {
  const ringfence = await compose(testHost.options)
  const sandbox = await ringfence.gate.open({ workspace: testHost.workspace, backend: 'bubblewrap' })
  let ended: string | undefined
  void sandbox.ended.then((why) => {
    ended = why
  })
  await sandbox.exec(['true'])
  sandbox.lease(60_000)
  sandbox.lease(0)
  for (let round = 0; round < 4; round++) {
    sandbox.lease(2000)
    await sleep(20)
  }
  const running = sandbox.exec(['sleep', '100'])
  running.catch(() => {})
  await sleep(50)
  expect(ended).toBeUndefined()
  sandbox.lease(50)
  expect(await until(() => ended !== undefined)).toBe(true)
  expect(ended).toContain('nobody renewed the lease')
  await sandbox.close()
  await ringfence.close()
})
