import { chmodSync, createReadStream, createWriteStream, mkdirSync, symlinkSync, utimesSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { pipeline } from 'node:stream/promises'
import { SandboxError } from '../../model/errors.ts'
import { type TarEntry, TarReader } from '../tar/reader.ts'

/** Special bits too: an image's `/tmp` is sticky. */
const MODES = 0o7777

/**
 * Unpacks a layer that `tar/writer.ts` wrote into an empty directory.
 * SECURITY: rejects names that lead outside, and everything that such an archive never contains.
 */
export async function unpackLayer(archive: string, into: string): Promise<void> {
  const reader = new TarReader(createReadStream(archive), { modes: MODES })
  const links = new Set<string>()
  try {
    for (let entry = await reader.next(); entry; entry = await reader.next()) {
      refuseBelowLink(entry.name, links)
      if (entry.kind === 'link') links.add(entry.name)
      await extract(reader, entry, into)
    }
  } catch (error) {
    if (!(error instanceof SandboxError)) throw error
    throw new SandboxError(
      'launch-failed',
      `not an image made by \`ringfence image build\`: ${error.message}`,
      {
        hint: 'remove the image with `ringfence image rm` and build it again',
        cause: error,
      },
    )
  } finally {
    await reader.close()
  }
}

/** SECURITY: an entry below a link of the archive would be written where the link leads. */
function refuseBelowLink(name: string, links: ReadonlySet<string>): void {
  const parts = name.split('/')
  const isBelow = parts.some((_, index) => index > 0 && links.has(parts.slice(0, index).join('/')))
  if (isBelow) throw new SandboxError('path-traversal', `the archive holds \`${name}\` below a link`)
}

async function extract(
  reader: TarReader,
  { name, kind, mode, link, modified }: TarEntry,
  into: string,
): Promise<void> {
  const path = join(into, name)
  if (kind === 'dir') mkdirSync(path, { recursive: true, mode })
  else if (kind === 'link') symlinkSync(link, path)
  else if (kind === 'file') {
    mkdirSync(dirname(path), { recursive: true })
    await pipeline(reader.content(), createWriteStream(path, { flags: 'wx', mode: 0o600 }))
    // After the write: a mode without `w`, or with special bits, would be lost.
    chmodSync(path, mode)
    utimesSync(path, modified, modified)
  } else throw new SandboxError('path-traversal', `the archive contains \`${name}\`, which is not a file`)
}
