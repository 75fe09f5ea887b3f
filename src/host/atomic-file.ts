import { closeSync, fsyncSync, openSync, renameSync, rmSync, writeSync } from 'node:fs'

/** Writes a whole file or nothing: readers see the old content or the new, also after a crash. Mode 0600. */
export function writeAtomically(file: string, content: string): void {
  const temporary = `${file}.${process.pid}.tmp`
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
