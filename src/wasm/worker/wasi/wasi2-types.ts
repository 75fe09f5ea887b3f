/** Types of the WASI 0.2 classes; types only, because the classes are sent to the thread as text. */

/** The functions of interfaces, by interface and name. */
export type Functions = Readonly<Record<string, Readonly<Record<string, (...args: never[]) => unknown>>>>

/** An error of a stream: what failed, and for files the code. */
export type StreamFailure = { readonly failed: string; readonly code?: string }

/** A source of bytes: `undefined` at the end. */
export type InputStream = { readonly read: (length: number) => Uint8Array | StreamFailure | undefined }
/** A sink of bytes. */
export type OutputStream = { readonly write: (bytes: Uint8Array) => StreamFailure | undefined }
/** Something to wait for: ready at once, or at a time of the monotonic clock in nanoseconds. */
export type Pollable = { readonly until: bigint | undefined }

/** What stands for a resource: an object without properties, so that a component cannot read the host's state as a record. */
export type ResourceToken = object

/** Resources of the host that a component holds. */
export type Wasi2Resources = {
  make(kind: string, state: object): ResourceToken
  /** The state of a resource; throws unless it is a resource of this kind that the host made. */
  get<T extends object>(kind: string, value: unknown): T
  is(kind: string, value: unknown): boolean
  /** Records how many bytes a resource keeps outside of the component's memory; ends the run if all keep too many. */
  keep(value: ResourceToken, bytes: number): void
  readonly ready: ResourceToken
}
