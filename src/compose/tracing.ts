import { NO_TRACER, type Tracer } from '../model/tracer.ts'
import { openTracer } from '../supervisor/telemetry/open-telemetry.ts'
import type { Ringfence } from './compose.ts'

/** The tracer of a server: the collector of `[telemetry] traces`, or the one that OpenTelemetry's own variable names. */
export async function tracerOf(
  { config, env }: Pick<Ringfence, 'config' | 'env'>,
  version: string,
): Promise<Tracer> {
  const url = config.telemetry?.traces ?? env.OTEL_EXPORTER_OTLP_ENDPOINT
  if (!url) return NO_TRACER
  return openTracer({ url, service: env.OTEL_SERVICE_NAME ?? 'ringfence', version }, async () => {
    const [api, sdk, exporter, resources] = await Promise.all([
      import('@opentelemetry/api'),
      import('@opentelemetry/sdk-trace-node'),
      import('@opentelemetry/exporter-trace-otlp-http'),
      import('@opentelemetry/resources'),
    ])
    return { api, sdk, exporter, resources }
  })
}
