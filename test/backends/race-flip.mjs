// Flips a tree between its two states as fast as it can until its standard input closes. Run by race.test.ts.
import { closeSync, linkSync, openSync, renameSync, symlinkSync, unlinkSync, writeFileSync } from 'node:fs'

const { operations, pipe } = JSON.parse(process.argv[2])

const attempt = (action) => {
  try {
    action()
  } catch {
    // The judged side may have taken or made the name just now; the next round tries again.
  }
}

const DO = {
  rename: ([from, to]) => renameSync(from, to),
  symlink: ([target, at]) => symlinkSync(target, at),
  unlink: (path) => unlinkSync(path),
  fifo: (path) => linkSync(pipe, path),
  file: (path) => closeSync(openSync(path, 'a')),
}
const UNDO = {
  rename: ([from, to]) => renameSync(to, from),
  symlink: ([, at]) => unlinkSync(at),
  unlink: (path) => writeFileSync(path, 'x', { flag: 'wx' }),
  fifo: (path) => unlinkSync(path),
  file: () => undefined,
}
// A removed link comes back as a link, not as a file.
const links = new Map(JSON.parse(process.argv[3]))
UNDO.unlink = (path) =>
  links.has(path) ? symlinkSync(links.get(path), path) : writeFileSync(path, 'x', { flag: 'wx' })

const each = (table, list) => {
  for (const operation of list) {
    for (const [name, value] of Object.entries(operation)) attempt(() => table[name](value))
  }
}

process.stdin.on('end', () => process.exit(0)).resume()
process.stdout.write('ready\n')
const round = () => {
  for (let turn = 0; turn < 50; turn++) {
    each(DO, operations)
    each(UNDO, operations.toReversed())
  }
  setImmediate(round)
}
round()
