import { lstatSync, readFileSync, readlinkSync } from 'node:fs'
import { posix } from 'node:path'

/** One entry of an image. `source` is read when the image is written; generated files have their content here. */
export type TreeEntry =
  | { readonly kind: 'dir'; readonly mode: number }
  | { readonly kind: 'link'; readonly target: string }
  | { readonly kind: 'file'; readonly mode: number; readonly modified: number; readonly content: Content }
type Content = { readonly source: string; readonly size: number } | { readonly text: string }

/** Full path → entry. Later entries replace earlier ones. */
export type Tree = Map<string, TreeEntry>

/** Adds missing parent directories. */
export function addParents(tree: Tree, path: string): void {
  for (let dir = posix.dirname(path); dir !== '/' && !tree.has(dir); dir = posix.dirname(dir))
    tree.set(dir, { kind: 'dir', mode: 0o755 })
}

/**
 * Adds a host file or symbolic link; directories are added through their contents. Returns whether it was new.
 * SECURITY: drops setuid bits, and skips files that are not readable for everyone, so that a secret among programs does
 * not enter an image.
 */
export function addHostPath(tree: Tree, path: string, at = path): boolean {
  const stat = lstatSync(path, { throwIfNoEntry: false })
  if (!stat || tree.has(at)) return false
  if (stat.isSymbolicLink()) tree.set(at, { kind: 'link', target: readlinkSync(path) })
  else if (stat.isFile() && stat.mode & 0o004)
    tree.set(at, {
      kind: 'file',
      mode: stat.mode & 0o755,
      modified: Math.floor(stat.mtimeMs / 1000),
      content: { source: path, size: stat.size },
    })
  else return false
  addParents(tree, at)
  return true
}

/** Adds a file with this text. */
export function addText(tree: Tree, path: string, text: string): void {
  addParents(tree, path)
  tree.set(path, { kind: 'file', mode: 0o644, modified: 0, content: { text } })
}

/** The content of a file. */
export const bytesOf = (content: Content): Buffer =>
  'text' in content ? Buffer.from(content.text) : readFileSync(content.source)
