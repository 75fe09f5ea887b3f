/**
 * Whether a path is a directory or inside it. Both must be absolute and normalized: no `.`, no `..`, no trailing slash
 * except the root's. Compares text only: resolve symlinks first if the real path matters.
 */
export const isWithin = (path: string, directory: string): boolean =>
  path === directory || path.startsWith(directory.endsWith('/') ? directory : `${directory}/`)
