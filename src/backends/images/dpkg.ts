import { readdirSync } from 'node:fs'
import { readText } from '../../host/system.ts'

/** The host's package database, read without dpkg. Empty if there is none. */
export type Packages = {
  /** The packages that installed a file, by its full path. */
  readonly ownersOf: (path: string) => readonly string[]
  readonly filesOf: (name: string) => readonly string[]
  readonly dependenciesOf: (name: string) => readonly string[]
}

const HOME = '/var/lib/dpkg'

/** Reads the package database of this host. */
export function installedPackages(home = HOME): Packages {
  const lists = listsOf(home)
  const owners = new Map<string, string[]>()
  for (const [name, files] of lists)
    for (const file of files) owners.set(file, [...(owners.get(file) ?? []), name])
  const { depends, provides } = relations(readText(`${home}/status`) ?? '')
  const known = (name: string): string | undefined =>
    lists.has(name) ? name : provides.get(name)?.find((other) => lists.has(other))
  return {
    ownersOf: (path) => owners.get(path) ?? [],
    filesOf: (name) => lists.get(name) ?? [],
    dependenciesOf: (name) =>
      (depends.get(name) ?? []).flatMap((choices) => choices.map(known).find(Boolean) ?? []),
  }
}

function listsOf(home: string): ReadonlyMap<string, readonly string[]> {
  const found = new Map<string, readonly string[]>()
  for (const file of names(`${home}/info`).filter((name) => name.endsWith('.list'))) {
    // `libc6:amd64.list`: dependencies name packages without the architecture.
    const name = file.slice(0, -'.list'.length).split(':')[0] as string
    const lines = (readText(`${home}/info/${file}`) ?? '').split('\n').filter((line) => line.length > 2)
    found.set(name, [...(found.get(name) ?? []), ...lines])
  }
  return found
}

function names(dir: string): readonly string[] {
  try {
    return readdirSync(dir).sort()
  } catch {
    return []
  }
}

type Relations = {
  readonly depends: ReadonlyMap<string, readonly (readonly string[])[]>
  readonly provides: ReadonlyMap<string, readonly string[]>
}

function relations(status: string): Relations {
  const depends = new Map<string, readonly (readonly string[])[]>()
  const provides = new Map<string, string[]>()
  for (const paragraph of status.split('\n\n')) {
    const name = field(paragraph, 'Package')
    if (!name) continue
    const needed = [field(paragraph, 'Pre-Depends'), field(paragraph, 'Depends')].filter(Boolean).join(',')
    depends.set(
      name,
      needed.split(',').map((choices) => choices.split('|').map(bare)),
    )
    for (const other of field(paragraph, 'Provides').split(',').map(bare))
      provides.set(other, [...(provides.get(other) ?? []), name])
  }
  return { depends, provides }
}

const field = (paragraph: string, name: string): string =>
  new RegExp(`^${name}: (.*)$`, 'm').exec(paragraph)?.[1] ?? ''

/** `libc6:any (>= 2.36)` refers to `libc6`. */
const bare = (text: string): string => text.trim().split(/[ :(]/)[0] as string
