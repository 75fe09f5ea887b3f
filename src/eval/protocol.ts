/** What the host asks of the thread that holds the engine, and what it hears. Plain data: it crosses a port. */
export type EvalJob = {
  readonly code: string
  /** `{"seed":[…],"context":{…}}` as JSON text. */
  readonly given: string
  /** Whether `await` may stand at the top and pending jobs are run. */
  readonly awaits: boolean
  readonly as: 'json' | 'truth' | 'text'
  readonly timeoutMs: number
  readonly memoryBytes: number
  readonly outputBytes: number
}

/** How an evaluation ended and what it used. */
export type EvalReport = {
  readonly end: EvalEnd
  /** The engine's memory grew far; only the end of its thread gives it back. */
  readonly retire: boolean
}

/** The value, the error or the limit that ended an evaluation. */
export type EvalEnd =
  /** No text: the value has no JSON form (undefined, a function, a symbol). */
  | { readonly kind: 'value'; readonly text: string | undefined }
  | { readonly kind: 'threw'; readonly message: string }
  | { readonly kind: 'timeout' }
  | { readonly kind: 'exhausted'; readonly what: 'memory' | 'stack' | 'output' }
  | { readonly kind: 'broken'; readonly reason: string }
