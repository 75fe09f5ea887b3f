import { AsyncLocalStorage } from 'node:async_hooks'
import type * as Api from '@opentelemetry/api'
import type * as Exporter from '@opentelemetry/exporter-trace-otlp-http'
import type * as Resources from '@opentelemetry/resources'
import type * as Sdk from '@opentelemetry/sdk-trace-node'
import { SandboxError } from '../../model/errors.ts'
import type { Span, SpanAttributes, Tracer } from '../../model/tracer.ts'

/** The packages of OpenTelemetry, which are optional dependencies. */
export type OpenTelemetry = {
  readonly api: typeof Api
  readonly sdk: typeof Sdk
  readonly exporter: typeof Exporter
  readonly resources: typeof Resources
}

/** Where spans go, and in whose name. */
export type TraceSettings = {
  /** A collector that accepts OTLP over HTTP: `http://host:4318`, or the whole address. */
  readonly url: string
  readonly service: string
  readonly version: string
}

const PACKAGES =
  '@opentelemetry/api @opentelemetry/resources @opentelemetry/sdk-trace-node@2 @opentelemetry/exporter-trace-otlp-http@0.223'

/** A tracer that sends its spans to a collector. */
export async function openTracer(
  settings: TraceSettings,
  load: () => Promise<OpenTelemetry>,
): Promise<Tracer> {
  const url = collectorOf(settings.url)
  const packages = await load().catch((cause: unknown) => {
    throw new SandboxError('invalid-config', '[telemetry] traces needs the packages of OpenTelemetry', {
      hint: `install them beside ringfence: \`npm install ${PACKAGES}\``,
      cause,
    })
  })
  const { resourceFromAttributes } = packages.resources
  const provider = new packages.sdk.NodeTracerProvider({
    resource: resourceFromAttributes({
      'service.name': settings.service,
      'service.version': settings.version,
    }),
    spanProcessors: [new packages.sdk.BatchSpanProcessor(new packages.exporter.OTLPTraceExporter({ url }))],
  })
  return new OpenTelemetryTracer(packages.api, provider)
}

function collectorOf(text: string): string {
  const url = URL.canParse(text) ? new URL(text) : undefined
  if (!url || !/^https?:$/.test(url.protocol) || url.username)
    throw new SandboxError('invalid-config', '[telemetry] traces is not `http://host:4318`', {
      hint: 'credentials for the collector go into OTEL_EXPORTER_OTLP_HEADERS',
    })
  if (url.pathname === '/') url.pathname = '/v1/traces'
  return url.href
}

const TRACEPARENT = /^00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})$/

class OpenTelemetryTracer implements Tracer {
  readonly #api: typeof Api
  readonly #provider: Sdk.NodeTracerProvider
  readonly #tracer: Api.Tracer
  readonly #current = new AsyncLocalStorage<Api.SpanContext>()

  constructor(api: typeof Api, provider: Sdk.NodeTracerProvider) {
    this.#api = api
    this.#provider = provider
    this.#tracer = provider.getTracer('ringfence')
  }

  begin(name: string, attributes: SpanAttributes = {}, parent?: string): Span {
    const { trace, ROOT_CONTEXT } = this.#api
    const above = contextOf(parent) ?? this.#current.getStore()
    const around = above ? trace.setSpanContext(ROOT_CONTEXT, above) : ROOT_CONTEXT
    return new StartedSpan(this.#tracer.startSpan(name, { attributes: defined(attributes) }, around))
  }

  within<T>(span: Span, work: () => T): T {
    return this.#current.run((span as StartedSpan).context, work)
  }

  close(): Promise<void> {
    return this.#provider.shutdown()
  }
}

/** The span of another program that `traceparent` names; anything else begins a trace of its own. */
function contextOf(traceparent: string | undefined): Api.SpanContext | undefined {
  const [, traceId, spanId, flags] = TRACEPARENT.exec(traceparent ?? '') ?? []
  if (!traceId || !spanId || !flags || /^0+$/.test(traceId) || /^0+$/.test(spanId)) return undefined
  return { traceId, spanId, traceFlags: Number.parseInt(flags, 16) & 1, isRemote: true }
}

const defined = (attributes: SpanAttributes): Api.Attributes =>
  Object.fromEntries(Object.entries(attributes).filter(([, value]) => value !== undefined))

const FAILED = 2

class StartedSpan implements Span {
  readonly #span: Api.Span

  constructor(span: Api.Span) {
    this.#span = span
  }

  get context(): Api.SpanContext {
    return this.#span.spanContext()
  }

  get traceparent(): string {
    const { traceId, spanId, traceFlags } = this.context
    return `00-${traceId}-${spanId}-${(traceFlags & 1).toString(16).padStart(2, '0')}`
  }

  describe(attributes: SpanAttributes): void {
    this.#span.setAttributes(defined(attributes))
  }

  end({ error, name }: { readonly error?: unknown; readonly name?: string } = {}): void {
    if (name !== undefined) this.#span.updateName(name)
    // SECURITY: the code, not the message, which may quote a command.
    if (error !== undefined) this.#span.setStatus({ code: FAILED, message: codeOf(error) })
    this.#span.end()
  }
}

const codeOf = (error: unknown): string => (error instanceof SandboxError ? error.code : 'internal')
