import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, expect, test } from 'vitest'
import { planOf } from '../../test/conformance/world.ts'
import {
  COMMAND_FIELDS,
  CONFIG_FIELDS,
  EXPECTED_MOUNTS,
  FILE_OPERATIONS,
  IDENTITY_FIELDS,
  MACHINE_FIELDS,
} from '../host/guest/protocol.ts'
import { containerFields, expectedMounts } from './guest-config.ts'
import { guestFiles } from './guest-files.ts'
import { newIdentity } from './microvm/identity.ts'
import { containerSettingFields, WARM_UP_FIELDS, WARM_UP_MOUNTS } from './microvm/machine-config.ts'

const workspace = mkdtempSync(join(tmpdir(), 'rf-protocol-'))
afterAll(() => rmSync(workspace, { recursive: true, force: true }))

const plan = planOf({ workspace, limits: { memoryMb: 64, pids: 9, diskMb: 8 } })
const configuration = { ...COMMAND_FIELDS, ...CONFIG_FIELDS }
const machine = { user: { uid: 1, gid: 1 }, hostname: 'h', memoryMb: 512, images: new Set([0]) }

/** Parses fields like the agent: a name, then its arguments. Returns the names. */
function namesIn(words: readonly string[], arity: Readonly<Record<string, number>>): string[] {
  const names: string[] = []
  for (let at = 0; at < words.length; ) {
    const name = words[at] as string
    if (!Object.hasOwn(arity, name)) throw new Error(`unknown field ${name}`)
    names.push(name)
    at += 1 + (arity[name] as number)
    if (at > words.length) throw new Error(`${name} has too few arguments`)
  }
  return names
}

test.each([
  [
    'a container',
    containerFields(plan, { supervises: true, counts: true, copies: true, prefork: true }),
    configuration,
  ],
  ['a warm virtual machine', WARM_UP_FIELDS, configuration],
  ['its mounts', WARM_UP_MOUNTS, MACHINE_FIELDS],
  ['a virtual machine', containerSettingFields(plan, machine), MACHINE_FIELDS],
  ['expected mounts', expectedMounts(plan), EXPECTED_MOUNTS],
  ['an identity', newIdentity().fields, IDENTITY_FIELDS],
])('the agent knows every field of %s', (_, words, arity) => {
  expect(namesIn(words, arity).length).toBeGreaterThan(0)
})

test('the agent knows every file operation, with the same number of arguments', async () => {
  const calls: (readonly string[])[] = []
  const files = guestFiles(
    async (argv) => {
      calls.push(argv)
      return 0
    },
    () => true,
  )
  const packed = [files.pack('/a'), files.pack('/a', { whole: true })]
  for (const stream of [files.read('/a'), ...packed, files.changes('/a', '0')]) for await (const _ of stream);
  await files.write('/a', [])
  await files.list('/a')
  await files.stat('/a')
  await files.makeDir('/a')
  await files.move('/a', '/b')
  await files.remove('/a')
  await files.unpack('/a', [])
  await files.sync('/a')
  await files.watch('/a', { onChange: () => {}, signal: AbortSignal.abort() })
  expect(Object.fromEntries(calls.map(([name, ...rest]) => [name, rest.length]))).toEqual(FILE_OPERATIONS)
})
