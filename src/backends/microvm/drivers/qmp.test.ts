import { Duplex } from 'node:stream'
import { describe, expect, test } from 'vitest'
import { Monitor } from './qmp.ts'

/** A QEMU that answers every command with these lines. */
function monitorOf(...lines: readonly string[]): Monitor {
  const stream: Duplex = new Duplex({
    read() {},
    write(_chunk, _encoding, done) {
      for (const line of lines) stream.push(`${line}\n`)
      done()
    },
  })
  return new Monitor(stream)
}

describe('a QEMU that was taken over', () => {
  test.each(['null', '1', '"text"', '{', ''])(
    'ends its own machine by the line `%s`, and nothing else',
    async (line) => {
      const monitor = monitorOf(line)
      await expect(monitor.call('stop')).rejects.toMatchObject({ code: 'launch-failed' })
      await expect(monitor.call('cont')).rejects.toMatchObject({ code: 'launch-failed' })
    },
  )

  test.each(['{"error":null}', '{"error":1}'])(
    'cannot answer with an error that has no text: %s',
    async (line) => {
      await expect(monitorOf(line).call('stop')).rejects.toMatchObject({ code: 'launch-failed' })
    },
  )

  test('cannot answer a migration with nothing', async () => {
    const monitor = monitorOf('{"return":null}', 'null')
    await expect(monitor.migrated()).rejects.toMatchObject({ code: 'launch-failed' })
  })
})

test('events are passed over, and answers belong to the commands in their order', async () => {
  const monitor = monitorOf('{"event":"RESUME"}', '{"return":{"status":"completed"}}')
  expect(await monitor.call('query-status')).toEqual({ status: 'completed' })
  await monitor.migrated()
})
