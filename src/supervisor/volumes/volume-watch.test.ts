import { expect, test } from 'vitest'
import type { LiveSandbox } from '../lifecycle/live-sandbox.ts'
import { VolumeWatch } from './volume-watch.ts'
import type { VolumeRow } from './volumes.ts'

/** A fake, because no real volume takes so long to measure. */
const volumes = (rows: readonly VolumeRow[], ended: string[]) => ({
  written: async () => rows.filter(({ id }) => !ended.includes(id)),
  heldAndUsedBytes: ({ id }: VolumeRow) =>
    id === 'slow' ? new Promise<number>(() => {}) : Promise.resolve(2 * 1024 * 1024),
  usersOf: ({ id }: VolumeRow) => [{ id, sandbox: {} } as unknown as LiveSandbox],
})

test('a volume that is slow to measure does not block the measuring of others', async () => {
  const ended: string[] = []
  const rows = ['slow', 'full'].map((id) => ({ id, name: id, sizeMb: 1 }) as VolumeRow)
  const watch = new VolumeWatch({
    volumes: volumes(rows, ended),
    trail: { append: async () => {} },
    end: async ({ id }) => void ended.push(id),
  })
  watch.start()
  try {
    await expect.poll(() => ended, { timeout: 5000 }).toEqual(['full'])
  } finally {
    watch.close()
  }
})
