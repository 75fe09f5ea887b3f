import { readdir, readFile, readlink, stat } from 'node:fs/promises'
import { isWithin } from '../../model/files/path.ts'
import { descendantsOf } from '../system.ts'

/** Files that a process has deleted and still holds: no walk of a directory finds them. */

const MOST = 65_536
const DELETED = ' (deleted)'

/** The links to open files, and to files that are only mapped. */
async function linksOf(pid: number): Promise<readonly string[]> {
  const open = (await readdir(`/proc/${pid}/fd`)).map((name) => `/proc/${pid}/fd/${name}`)
  const maps = (await readFile(`/proc/${pid}/maps`, 'utf8'))
    .split('\n')
    .filter((line) => line.endsWith(DELETED))
  return [...open, ...maps.map((line) => `/proc/${pid}/map_files/${rangeOf(line)}`)]
}

/** PLATFORM: the names of mapped files have no leading zeroes. */
const rangeOf = (line: string): string =>
  (line.split(' ')[0] ?? '')
    .split('-')
    .map((number) => number.replace(/^0+(?=.)/, ''))
    .join('-')

/** The inode and size of a deleted file below this path of the sandbox. */
async function heldBy(
  link: string,
  below: string,
): Promise<{ readonly id: string; readonly bytes: number } | undefined> {
  const target = await readlink(link)
  if (!target.endsWith(DELETED) || !isWithin(target.slice(0, -DELETED.length), below)) return undefined
  const { nlink, dev, ino, blocks } = await stat(link)
  return nlink === 0 ? { id: `${dev}:${ino}`, bytes: blocks * 512 } : undefined
}

/**
 * Bytes of deleted files below a path of a sandbox that its processes still hold; undefined if they hold too many files to be
 * counted. `root` is the sandbox's first process on the host.
 */
export async function heldBytes(root: number, below: string): Promise<number | undefined> {
  const found = new Map<string, number>()
  let seen = 0
  for (const pid of descendantsOf(root)) {
    // A process may end while it is looked at.
    const links = await linksOf(pid).catch(() => [])
    seen += links.length
    if (seen > MOST) return undefined
    for (const link of links) {
      const held = await heldBy(link, below).catch(() => undefined)
      if (held) found.set(held.id, held.bytes)
    }
  }
  return [...found.values()].reduce((sum, bytes) => sum + bytes, 0)
}
