import { type RunningServer, startServer } from '../../compose/serve.ts'
import { CLUSTER_ROLES } from '../../model/config.ts'
import { visibleJson } from '../../model/text/visible.ts'
import { VERSION } from '../../model/version.ts'
import { type Journal, jsonJournal } from '../../supervisor/telemetry/journal.ts'
import { numberOption, parseOptions, usage } from '../options/options.ts'
import { err, out } from '../terminal/output.ts'

const OPTIONS = {
  host: { type: 'string' },
  port: { type: 'string' },
  'database-url': { type: 'string' },
  'tls-cert': { type: 'string' },
  'tls-key': { type: 'string' },
  'insecure-bind': { type: 'boolean' },
  'log-format': { type: 'string' },
  role: { type: 'string' },
  /** For `npm start` and tests: creates a key and prints it. */
  'print-key': { type: 'boolean' },
} as const

/** `ringfence serve`: runs until SIGTERM or SIGINT, then drains; a second signal stops at once. */
export async function serve(args: readonly string[]): Promise<number> {
  const { values, positionals } = parseOptions('serve', args, OPTIONS)
  if (positionals.length > 0) throw usage('serve', `unexpected \`${positionals[0]}\``)
  const journal = journalOf(values['log-format'])
  const say = (line: string): void => {
    if (journal) journal.message(line)
    else if (!values.quiet) err(`ringfence: ${line}\n`)
  }
  const stop = stopSignals()
  // A failure in one sandbox must not stop the others; an unhandled rejection is a bug and is logged.
  process.on('unhandledRejection', (error) => say(`unhandled: ${(error as Error)?.stack ?? error}`))
  const server = await startServer({
    config: values.config,
    policy: values.policy,
    host: values.host,
    port: numberOption('--port', values.port),
    databaseUrl: values['database-url'],
    tlsCert: values['tls-cert'],
    tlsKey: values['tls-key'],
    insecureBind: values['insecure-bind'],
    version: VERSION,
    log: say,
    journal,
    role: roleOf(values.role),
    onFenced: () => process.exit(FENCED),
  })
  const onReload = (): void => void reload(server, say)
  process.on('SIGHUP', onReload)
  await announce(server, values.json === true, values['print-key'] === true)
  if (server.recovered > 0) say(`${server.recovered} sandboxes of an earlier run were marked as ended`)
  await stop.first
  say('shutting down: waiting for running commands; a second signal stops at once')
  await Promise.race([server.drain(), stop.second.then(() => server.close())])
  process.off('SIGHUP', onReload)
  return 0
}

/** `--log-format json`: one line for each request, record and message on standard error. */
function journalOf(format = 'text'): Journal | undefined {
  if (format === 'text') return undefined
  if (format !== 'json') throw usage('serve', `--log-format: unknown \`${format}\`, expected text or json`)
  return jsonJournal(err)
}

/** Another node has taken over and nothing runs here any more: the engine that started this process starts it again. */
const FENCED = 75

function roleOf(given: string | undefined) {
  const role = CLUSTER_ROLES.find((one) => one === given)
  if (given === undefined || role) return role
  throw usage('serve', `--role: \`${given}\` is not one of ${CLUSTER_ROLES.join(', ')}`)
}

async function announce(server: RunningServer, json: boolean, printKey: boolean): Promise<void> {
  const key = printKey
    ? (await server.parts.keys.create({ name: 'start', scopes: ['create', 'exec', 'read', 'admin'] })).secret
    : undefined
  const { keys, sessions } = server.parts
  // In the fragment: browsers do not send it, so it appears in no access log.
  const console = `${server.url}/console/#${await sessions.newLink(await keys.consoleKey())}`
  const told = { url: server.url, pid: process.pid, console, ...(key === undefined ? {} : { key }) }
  const lines = [
    `listening on ${server.url}`,
    `console: ${console}  (signs you in once, within ten minutes)`,
    ...(key === undefined ? [] : [`key: ${key}`]),
  ]
  out(json ? `${visibleJson(told)}\n` : `${lines.join('\n')}\n`)
}

async function reload(server: RunningServer, say: (line: string) => void): Promise<void> {
  try {
    say(`reloaded; policy ${(await server.reload()).policy}`)
  } catch (error) {
    say(`not reloaded, the old configuration stays in effect: ${(error as Error).message}`)
  }
}

function stopSignals(): { readonly first: Promise<void>; readonly second: Promise<void> } {
  const waiting: (() => void)[] = []
  const next = (): Promise<void> => new Promise((resolve) => waiting.push(resolve))
  const [first, second] = [next(), next()]
  for (const signal of ['SIGTERM', 'SIGINT'] as const) process.on(signal, () => waiting.shift()?.())
  return { first, second }
}
