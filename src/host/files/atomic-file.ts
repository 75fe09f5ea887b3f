import { randomBytes } from 'node:crypto'
import { closeSync, fsyncSync, openSync, renameSync, rmSync, writeSync } from 'node:fs'

/** Writes a whole file or nothing: readers see the old content or the new, also after a crash. Mode 0600. */
export function writeAtomically(file: string, content: string): void {
  // Not the process id alone: what a crash left behind must not be in the way of whoever gets its number next.
  const temporary = `${file}.${process.pid}.${randomBytes(4).toString('hex')}.tmp`
  const fd = openSync(temporary, 'wx', 0o600)
  try {
    writeSync(fd, content)
    fsyncSync(fd)
    closeSync(fd)
    renameSync(temporary, file)
  } catch (error) {
    rmSync(temporary, { force: true })
    throw error
  }
}
