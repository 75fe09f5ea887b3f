import type { ResourceType } from './types.ts'

type Held = { readonly resource: ResourceType; readonly represents: unknown; readonly owned: boolean }

/**
 * The resources that one instance of a component holds, by handle. A handle of another resource type is refused.
 *
 * The class text is part of the worker's source, so it may use only JavaScript globals.
 */
export class ComponentHandles {
  readonly #held = new Map<number, Held>()
  readonly #free: number[] = []

  add(resource: ResourceType, represents: unknown, owned: boolean): number {
    if (this.#held.size >= 65_536) throw new TypeError('too many resources are open')
    const handle = this.#free.pop() ?? this.#held.size + 1
    this.#held.set(handle, { resource, represents, owned })
    return handle
  }

  get(handle: number, resource: ResourceType): unknown {
    return this.#find(handle, resource).represents
  }

  take(handle: number, resource: ResourceType): { readonly represents: unknown; readonly owned: boolean } {
    const held = this.#find(handle, resource)
    this.#held.delete(handle)
    this.#free.push(handle)
    return held
  }

  #find(handle: number, resource: ResourceType): Held {
    const held = this.#held.get(handle)
    if (held === undefined || held.resource !== resource) throw new TypeError('a handle is not valid')
    return held
  }
}
