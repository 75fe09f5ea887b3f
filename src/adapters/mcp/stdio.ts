import { loadMcp, type McpOptions, mcpServer } from './server.ts'

const MAX_MESSAGE = 32 * 1024 * 1024

/** Serves one client on stdin and stdout until it disconnects. Nothing else may write to stdout. */
export async function serveMcpOnStdio(
  options: McpOptions & { readonly onError?: (error: Error) => void },
): Promise<void> {
  const [sdk, { serveStdio, StdioServerTransport }] = await Promise.all([
    loadMcp(),
    import('@modelcontextprotocol/server/stdio'),
  ])
  const transport = new StdioServerTransport(process.stdin, process.stdout, { maxBufferSize: MAX_MESSAGE })
  const left = new Promise<void>((resolve) => {
    process.stdin.once('end', resolve)
    process.stdin.once('close', resolve)
    for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.once(signal, () => resolve())
  })
  const handle = serveStdio(() => mcpServer(sdk, options), {
    transport,
    ...(options.onError && { onerror: options.onError }),
  })
  await left
  await handle.close()
  await options.session.close()
}
