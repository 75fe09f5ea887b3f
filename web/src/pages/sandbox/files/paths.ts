/** Absolute POSIX paths inside a sandbox. */
export const parentOf = (path: string): string => path.replace(/\/[^/]*$/, '') || '/'
export const joinPath = (dir: string, name: string): string => `${dir === '/' ? '' : dir}/${name}`
export const baseName = (path: string): string => path.split('/').at(-1) ?? path
