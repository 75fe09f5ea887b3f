import { SandboxError } from '../../model/errors.ts'

/** What the machine itself may refuse to any program; not a defect of ours, and each has something to do about it. */
const TROUBLE: Readonly<Record<string, readonly [what: string, hint: string]>> = {
  ENOSPC: ['no space left on the disk', 'free some space; nothing runs without its record'],
  EDQUOT: ['the disk quota is used up', 'free some space; nothing runs without its record'],
  EROFS: ['the file system is read-only', 'set RINGFENCE_HOME to a directory that can be written'],
  EACCES: [
    'no permission',
    'see that the user who runs ringfence may use it; its state is in RINGFENCE_HOME',
  ],
  EPERM: ['not permitted', 'see that the user who runs ringfence may use it; its state is in RINGFENCE_HOME'],
  EIO: ['the disk reports an error', 'look at the system log (dmesg)'],
  EMFILE: ['too many open files', 'raise the limit of open files (ulimit -n)'],
  ENFILE: ['the system has no file descriptors left', 'end programs that hold many files open'],
  ENOMEM: ['no memory left', 'free some memory'],
}

/** An error of the operating system as one of ours; undefined for anything else. */
export function hostTrouble(error: unknown): SandboxError | undefined {
  const { code, path } = (error ?? {}) as NodeJS.ErrnoException
  const known = code !== undefined && Object.hasOwn(TROUBLE, code) ? TROUBLE[code] : undefined
  if (!known) return undefined
  const message = path === undefined ? known[0] : `${known[0]}: \`${path}\``
  return new SandboxError('store-unwritable', message, { hint: known[1], cause: error })
}
