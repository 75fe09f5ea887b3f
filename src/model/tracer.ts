/**
 * What is known about a span.
 * SECURITY: ids and words of our own. Commands, paths and hosts are chosen by those who use a sandbox, and stay in the audit log.
 */
export type SpanAttributes = Readonly<Record<string, string | number | undefined>>

/** A piece of work that is timed as part of a trace. */
export type Span = {
  /** The `traceparent` of this span, for programs that continue the trace (W3C Trace Context); undefined if nothing is traced. */
  readonly traceparent: string | undefined
  describe(attributes: SpanAttributes): void
  /** Ends it; with the error if the work failed. `name` replaces the name that it began with. */
  end(outcome?: { readonly error?: unknown; readonly name?: string }): void
}

/** Makes spans. */
export type Tracer = {
  /** Begins a span below `parent`, or below the span in which it is called. */
  begin(name: string, attributes?: SpanAttributes, parent?: string): Span
  /** Runs work so that spans that begin during it are below this one. */
  within<T>(span: Span, work: () => T): T
  /** Sends what is left. */
  close(): Promise<void>
}

const NO_SPAN: Span = { traceparent: undefined, describe() {}, end() {} }

/** Traces nothing. */
export const NO_TRACER: Tracer = {
  begin: () => NO_SPAN,
  within: (_span, work) => work(),
  close: async () => {},
}

/** Runs work as one span, which ends with it. */
export async function traced<T>(
  tracer: Tracer,
  name: string,
  attributes: SpanAttributes,
  work: (span: Span) => Promise<T>,
): Promise<T> {
  const span = tracer.begin(name, attributes)
  try {
    const value = await tracer.within(span, () => work(span))
    span.end()
    return value
  } catch (error) {
    span.end({ error })
    throw error
  }
}
