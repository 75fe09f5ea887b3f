import { existsSync, readdirSync, readFileSync, realpathSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { needsOf } from '../../images/elf.ts'

const ROOTS = ['/lib', '/usr/lib', '/lib64', '/usr/lib64']

/** Programs with all their libraries, by their real paths and by the names that the loader searches for. */
export function libraryClosure(files: readonly string[]): readonly string[] {
  const found = new Set<string>()
  const dirs = libraryDirs()
  const add = (path: string): void => {
    if (found.has(path)) return
    found.add(path)
    const needs = needsOf(readFileSync(path))
    if (needs?.interpreter) add(needs.interpreter)
    const own = needs?.paths.map((dir) => dir.replace(/\$\{?ORIGIN\}?/, dirname(path))) ?? []
    for (const name of needs?.libraries ?? []) {
      const found = [...own, ...dirs].map((dir) => join(dir, name)).find((candidate) => existsSync(candidate))
      if (found) add(found)
    }
  }
  for (const file of files) add(file)
  return [...found].map(merged)
}

/** `/lib` is a symbolic link to `usr/lib` on most hosts, and in the jail too. */
const merged = (path: string): string =>
  join(realpathSync(dirname(path)), path.slice(dirname(path).length + 1))

const libraryDirs = (): readonly string[] =>
  ROOTS.filter((dir) => existsSync(dir)).flatMap((dir) => [
    dir,
    ...readdirSync(dir)
      .filter((name) => name.endsWith('-linux-gnu'))
      .map((name) => join(dir, name)),
  ])
