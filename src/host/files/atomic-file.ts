import { randomBytes } from 'node:crypto'
import { closeSync, fsyncSync, openSync, renameSync, rmSync, writeSync } from 'node:fs'

/** Writes a file atomically: readers see the old or the new content, also after a crash. Mode 0600. */
export function writeAtomically(file: string, content: string): void {
  // The pid alone is not unique: a file left by a crash must not block a later process with the same pid.
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
