/**
 * Whether a path is a directory or inside it. Both must be absolute and normalized: no `.`, no `..`, no trailing slash
 * except the root's. Compares text only: resolve symlinks first if the real path matters.
 */
export const isWithin = (path: string, directory: string): boolean =>
  path === directory || path.startsWith(directory.endsWith('/') ? directory : `${directory}/`)

/**
 * Whether a path belongs to a workspace. SECURITY: a workspace that is the whole machine (`/`) owns nothing: what lies in it
 * gets no more trust than what lies outside of any other workspace.
 */
export const isInWorkspace = (path: string, workspace: string): boolean =>
  workspace !== '/' && isWithin(path, workspace)
