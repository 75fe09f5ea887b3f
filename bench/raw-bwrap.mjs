import { wrap } from '../dist/bench/library.js'

/** The arguments of plain bubblewrap with the mounts of a Ringfence sandbox: the cost of the sandbox without Ringfence's own code. */
export async function rawBwrap(workspace, options) {
  const { env } = await wrap({ workspace }, ['true'], options)
  const items = Array.from(
    { length: Number(env.RINGFENCE_LAUNCH) },
    (_, index) => env[`RINGFENCE_LAUNCH_${index}`],
  )
  const args = []
  for (let at = 0; at < items.length; at++) {
    if (items[at] === 'arg') args.push(items[++at])
    else if (items[at] === 'bind') {
      args.push(items[at + 1] === 'rw' ? '--bind' : '--ro-bind', items[at + 2], items[at + 5])
      at += 5
    } else if (items[at] === 'file') {
      // Drop the permissions option of a file that plain bubblewrap does not get here.
      args.splice(-2)
      at += 2
    } else at += 1
  }
  return args.filter((arg, index) => arg !== '--cap-add' && args[index - 1] !== '--cap-add')
}
