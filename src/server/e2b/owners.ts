import type { OpenSandbox } from '../../supervisor/open-sandbox.ts'

/** Names of users and groups as the sandbox sees them, from its own `/etc/passwd` and `/etc/group`. */

type Names = { readonly users: ReadonlyMap<number, string>; readonly groups: ReadonlyMap<number, string> }
type Known = { readonly names: Promise<Names>; readonly readAt: number }

/** SECURITY: the sandbox may write these files, so only their beginning is read. */
const MOST_BYTES = 64 * 1024
/** An unknown id leads to another look into the files, at most this often. */
const REREAD_MS = 1000
const KNOWN = new WeakMap<OpenSandbox, Known>()

/** The names of an owner and its group; a number that has no name stays a number, as with `ls -l`. */
export async function ownerOf(
  sandbox: OpenSandbox,
  { uid, gid }: { readonly uid: number; readonly gid: number },
): Promise<{ readonly owner: string; readonly group: string }> {
  const before = KNOWN.get(sandbox)
  let names = await (before ?? read(sandbox)).names
  const isNew = !names.users.has(uid) || !names.groups.has(gid)
  if (isNew && before && Date.now() - before.readAt > REREAD_MS) names = await read(sandbox).names
  return { owner: names.users.get(uid) ?? String(uid), group: names.groups.get(gid) ?? String(gid) }
}

function read(sandbox: OpenSandbox): Known {
  const both = Promise.all([table(sandbox, '/etc/passwd'), table(sandbox, '/etc/group')])
  const known = { names: both.then(([users, groups]) => ({ users, groups })), readAt: Date.now() }
  KNOWN.set(sandbox, known)
  return known
}

async function table(sandbox: OpenSandbox, path: string): Promise<ReadonlyMap<number, string>> {
  const text = await sandbox.files.read(path, { offset: 0, length: MOST_BYTES }).then(
    (bytes) => Buffer.from(bytes).toString('utf8'),
    () => '',
  )
  const rows = text.split('\n').flatMap((line) => {
    const [, name, id] = /^([a-z_][a-z0-9_.-]{0,31}\$?):[^:]*:(\d{1,10})(?::|$)/i.exec(line) ?? []
    return name === undefined ? [] : [[Number(id), name] as const]
  })
  // The first line with an id wins, as it does for every program.
  return new Map([[0, 'root'] as const, ...rows.reverse()])
}
