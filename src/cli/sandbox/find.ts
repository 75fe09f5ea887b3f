import type { RemoteSandbox } from '../../client/sandbox.ts'
import type { SandboxInfo } from '../../client/types.ts'
import { SandboxError } from '../../model/errors.ts'
import { usage } from '../options/options.ts'
import { server } from '../server/remote.ts'

/** The metadata entry that holds a sandbox's name. */
export const NAME = 'name'

/** The sandbox with this id, or the live one with this name. */
export async function find(idOrName: string | undefined): Promise<RemoteSandbox> {
  if (idOrName === undefined) throw usage('sandbox', 'missing sandbox id or name')
  if (idOrName.startsWith('sb_')) return server().get(idOrName)
  const named = (await liveSandboxes()).filter(({ metadata }) => metadata?.[NAME] === idOrName)
  if (named.length > 1)
    throw new SandboxError('invalid-input', `${named.length} sandboxes have the name \`${idOrName}\``, {
      hint: `use an id: ${named.map(({ id }) => id).join(', ')}`,
    })
  const [one] = named
  if (!one)
    throw new SandboxError('sandbox-not-found', `no live sandbox has the id or name \`${idOrName}\``, {
      hint: 'see `ringfence sandbox ls`',
    })
  return server().get(one.id)
}

/** All sandboxes that have not ended. */
export const liveSandboxes = (): Promise<readonly SandboxInfo[]> => allSandboxes({ state: 'live' })

type Query = NonNullable<Parameters<ReturnType<typeof server>['list']>[0]>

/** Reads page after page, until `most` sandboxes that the filter keeps were found. */
export async function allSandboxes(
  query: Query,
  most = Number.POSITIVE_INFINITY,
  keeps: (one: SandboxInfo) => boolean = () => true,
): Promise<readonly SandboxInfo[]> {
  const found: SandboxInfo[] = []
  let cursor: string | null | undefined
  do {
    const page = await server().list({ ...query, limit: 200, ...(cursor ? { cursor } : {}) })
    found.push(...page.items.filter(keeps))
    cursor = page.next
  } while (cursor && found.length < most)
  return found.slice(0, most)
}
