import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { Spec } from '../../model/spec.ts'
import { openStore } from '../../store/open.ts'
import type { Store } from '../../store/sql.ts'
import { Images } from '../images/images.ts'
import { openFrom } from './snapshots.ts'
import { Templates } from './templates.ts'

/** The backend that is chosen for a sandbox whose template has a disk. */

let dir: string
let store: Store
let templates: Templates
beforeAll(async () => {
  dir = mkdtempSync(join(tmpdir(), 'rf-disks-'))
  store = await openStore({ stateDir: dir, databaseUrl: '' })
  templates = new Templates(store, join(dir, 'templates'))
  for (const backend of ['docker', 'microvm']) {
    const row = {
      id: `snp_${backend}`,
      kind: 'snapshot' as const,
      tenant: 'ada',
      name: null,
      sandboxId: null,
    }
    await templates.save({ ...row, backend, createdAt: 1, data: { places: 0, paths: [], disk: true } })
    writeFileSync(join(dir, 'templates', `snp_${backend}.disk`), '')
  }
})
afterAll(async () => {
  await store.close()
  rmSync(dir, { recursive: true, force: true })
})

const settings = () => ({ mirrors: [], maxMb: 1, maxFiles: 1, maxTenantMb: 1 })

/** The spec that is opened; nothing is started here. */
async function openedSpec(template: string, backend?: string): Promise<Spec> {
  let opened: Spec | undefined
  const open = openFrom(templates, new Images({ dir, agent: '', settings }), async (spec) => {
    opened = spec
    throw new Error('opened')
  })
  const asked = { template, ...(backend ? { backend } : {}) }
  await expect(open(asked, { owner: 'ada' })).rejects.toThrow(/opened|has the disk/)
  if (!opened) throw new Error('refused')
  return opened
}

describe('the disk of a snapshot', () => {
  test('is restored on the backend that wrote it', async () => {
    expect(await openedSpec('snp_docker')).toMatchObject({ backend: 'docker', root: 'writable' })
    expect(await openedSpec('snp_microvm')).toMatchObject({ backend: 'microvm', root: 'writable' })
  })

  test('of a container can be restored on other backends with the host’s programs', async () => {
    expect(await openedSpec('snp_docker', 'bubblewrap')).toMatchObject({ backend: 'bubblewrap' })
  })

  test('of a virtual machine is never mounted by the host, and the other way round', async () => {
    for (const backend of ['bubblewrap', 'docker'])
      await expect(openedSpec('snp_microvm', backend)).rejects.toThrow('refused')
    await expect(openedSpec('snp_docker', 'microvm')).rejects.toThrow('refused')
  })
})
