import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { client, type Loose, type World, world } from './kit.ts'

/** E2B's `Secret` shows a tenant which secrets of the operator its sandboxes may use, and never a value. */

const dir = mkdtempSync(join(tmpdir(), 'rf-e2b-secrets-'))
let here: World
let Secret: Loose
beforeAll(async () => {
  const declared = (name: string, more: string): string => {
    const file = join(dir, name)
    writeFileSync(file, `value-of-${name}`, { mode: 0o600 })
    return `[[secret]]\nname = "${name}"\nfile = "${file}"\nhosts = ["https://api.example.com"]\n${more}\n`
  }
  here = await world(
    declared('LENT', 'tenants = ["default"]') +
      declared('OTHERS', 'tenants = ["blue"]') +
      declared('OWN', ''),
  )
  Secret = (await client('e2b')).Secret
})
afterAll(async () => {
  await here.close()
  rmSync(dir, { recursive: true })
})

const names = async (options: object): Promise<readonly string[]> =>
  (await Secret.list(options).nextItems()).map(({ name }: Loose) => name)

test('lists and shows what the operator lent to the tenant, without values', async () => {
  expect(await names(here.options)).toEqual(['LENT'])
  expect(await names({ ...here.options, apiKey: await here.key('blue') })).toEqual(['OTHERS'])
  const info = await Secret.getInfo('LENT', here.options)
  expect(info).toMatchObject({ secretId: 'sec_LENT', name: 'LENT', version: 1 })
  expect(info.metadata).toEqual({ hosts: 'https://api.example.com' })
  expect(await Secret.getInfo(info.secretId, here.options)).toEqual(info)
  expect(JSON.stringify(info)).not.toContain('value-of')
  expect(await Secret.exists('LENT', here.options)).toBe(true)
  for (const name of ['OTHERS', 'OWN', 'nothing']) expect(await Secret.exists(name, here.options)).toBe(false)
  await expect(Secret.getInfo('OTHERS', here.options)).rejects.toThrow(/not found/)
})

test('the API changes none: the operator declares them', async () => {
  for (const change of [
    () => Secret.create('mine', 'v', here.options),
    () => Secret.update('LENT', 'v', here.options),
    () => Secret.destroy('LENT', here.options),
  ])
    await expect(change()).rejects.toThrow(/declared by the operator/)
  expect(await names(here.options)).toEqual(['LENT'])
})
