/** Messages between the host and the thread that runs the engine. Plain data: they are sent through a MessagePort. */
export type EvalJob = {
  readonly code: string
  /** `{"seed":[…],"context":{…}}` as JSON text. */
  readonly given: string
  /** Whether top-level `await` is allowed and pending jobs are run. */
  readonly awaits: boolean
  readonly as: 'json' | 'truth' | 'text'
  readonly timeoutMs: number
  readonly memoryBytes: number
  readonly outputBytes: number
}

/** The outcome of an evaluation, and whether its thread must be replaced. */
export type EvalReport = {
  readonly end: EvalEnd
  /** The engine's memory grew past a limit; only ending the thread frees it. */
  readonly retire: boolean
}

/** The value, the error or the limit that ended an evaluation. */
export type EvalEnd =
  /** Without text, the value has no JSON form (undefined, a function, a symbol). */
  | { readonly kind: 'value'; readonly text: string | undefined }
  | { readonly kind: 'threw'; readonly message: string }
  | { readonly kind: 'timeout' }
  | { readonly kind: 'exhausted'; readonly what: 'memory' | 'stack' | 'output' }
  | { readonly kind: 'broken'; readonly reason: string }
