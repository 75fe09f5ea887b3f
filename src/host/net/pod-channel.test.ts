import { Socket } from 'node:net'
import { TLSSocket } from 'node:tls'
import { expect, test } from 'vitest'
import { fillMounts } from './pod-channel.ts'

test('more directories than the protocol has numbers are refused before anything is sent', async () => {
  const socket = new TLSSocket(new Socket())
  const sent: unknown[] = []
  socket.write = ((chunk: unknown) => sent.push(chunk) > 0) as typeof socket.write
  await expect(
    fillMounts(
      socket,
      Array.from({ length: 257 }, () => []),
    ),
  ).rejects.toThrow('more than 256')
  expect(sent).toEqual([])
  socket.destroy()
})
