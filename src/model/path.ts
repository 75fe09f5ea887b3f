/**
 * Whether a path is a directory or lies below it. Both are absolute and normalized: no `.`, no `..`, no slash at the end
 * other than the root's. Pure text: whoever needs the real place resolves links first.
 */
export const isWithin = (path: string, directory: string): boolean =>
  path === directory || path.startsWith(directory.endsWith('/') ? directory : `${directory}/`)
