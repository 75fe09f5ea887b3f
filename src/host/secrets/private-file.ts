import { closeSync, fstatSync, openSync, readFileSync } from 'node:fs'
import { assertPrivateFile } from '../../model/files/private-file.ts'

/** The bytes of a file with a secret. SECURITY: checked and read through one descriptor, so that what was checked is what is read. */
export function readPrivateFile(what: string, file: string): Buffer {
  const fd = openSync(file, 'r')
  try {
    const { mode, uid } = fstatSync(fd)
    assertPrivateFile(what, { file, mode, uid, reader: process.geteuid?.() })
    return readFileSync(fd)
  } finally {
    closeSync(fd)
  }
}
