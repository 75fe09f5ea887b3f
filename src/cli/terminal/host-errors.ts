import { SandboxError } from '../../model/errors.ts'

/** Operating-system errors that are not bugs in ringfence, each with a hint. */
const OS_ERRORS: Readonly<Record<string, readonly [what: string, hint: string]>> = {
  ENOSPC: [
    'no space left on the disk',
    'free disk space; a command runs only if its audit record can be written',
  ],
  EDQUOT: ['disk quota exceeded', 'free disk space; a command runs only if its audit record can be written'],
  EROFS: ['the file system is read-only', 'set RINGFENCE_HOME to a writable directory'],
  EACCES: [
    'permission denied',
    'give the user who runs ringfence access to it; the state directory is RINGFENCE_HOME',
  ],
  EPERM: [
    'not permitted',
    'give the user who runs ringfence access to it; the state directory is RINGFENCE_HOME',
  ],
  EIO: ['disk I/O error', 'check the system log (dmesg)'],
  EMFILE: ['too many open files', 'raise the limit of open files (ulimit -n)'],
  ENFILE: ['the system is out of file descriptors', 'stop programs that keep many files open'],
  ENOMEM: ['out of memory', 'free memory'],
}

/** Converts an operating-system error to a `SandboxError`; undefined for other errors. */
export function hostTrouble(error: unknown): SandboxError | undefined {
  const { code, path } = (error ?? {}) as NodeJS.ErrnoException
  const known = code !== undefined && Object.hasOwn(OS_ERRORS, code) ? OS_ERRORS[code] : undefined
  if (!known) return undefined
  const message = path === undefined ? known[0] : `${known[0]}: \`${path}\``
  return new SandboxError('store-unwritable', message, { hint: known[1], cause: error })
}
