import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { writeAtomically } from '../../host/files/atomic-file.ts'

/** Beside each tree: where it can be pulled from, and who has pulled it. */
type Uses = {
  readonly bytes: number
  readonly sources: readonly string[]
  readonly tenants: readonly string[]
}

const FILE = 'uses.json'
const NONE: Uses = { bytes: 0, sources: [], tenants: [] }

/** Which registries gave the layers of a tree, and which tenants it counts for. */
export class TreeUsers {
  readonly #dir: string

  constructor(dir: string) {
    this.#dir = dir
  }

  #of(tree: string): Uses {
    const path = join(this.#dir, tree, FILE)
    return existsSync(path) ? (JSON.parse(readFileSync(path, 'utf8')) as Uses) : NONE
  }

  /** INVARIANT: the whole of it happens in one turn, so that two pulls do not overwrite each other. */
  #change(tree: string, change: (uses: Uses) => Uses): void {
    writeAtomically(join(this.#dir, tree, FILE), JSON.stringify(change(this.#of(tree))))
  }

  /** Whether this source has given all layers of a tree. */
  isFrom(tree: string, source: string): boolean {
    return this.#of(tree).sources.includes(source)
  }

  addSource(tree: string, source: string): void {
    this.#change(tree, (uses) => ({ ...uses, sources: [...new Set([...uses.sources, source])] }))
  }

  setBytes(tree: string, bytes: number): void {
    this.#change(tree, (uses) => ({ ...uses, bytes }))
  }

  addTenant(tree: string, tenant: string): void {
    this.#change(tree, (uses) => ({ ...uses, tenants: [...new Set([...uses.tenants, tenant])] }))
  }

  /** Returns whether nobody is left. */
  removeTenant(tree: string, tenant: string): boolean {
    this.#change(tree, (uses) => ({ ...uses, tenants: uses.tenants.filter((other) => other !== tenant) }))
    return this.#of(tree).tenants.length === 0
  }

  /** The bytes of each tree that a tenant has pulled and that is still here. */
  treesOf(tenant: string): ReadonlyMap<string, number> {
    const trees = existsSync(this.#dir) ? readdirSync(this.#dir) : []
    return new Map(
      trees
        .map((tree) => [tree, this.#of(tree)] as const)
        .filter(([, { tenants }]) => tenants.includes(tenant))
        .map(([tree, { bytes }]) => [tree, bytes]),
    )
  }
}
