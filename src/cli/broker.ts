import { dirname, join } from 'node:path'
import { compose, environment, type Ringfence, stateDirectory } from '../compose/compose.ts'
import { frontPath } from '../compose/files.ts'
import type { FrontConnection, FrontRequest } from '../host/broker/front-connection.ts'
import { type BrokerListener, listenForFronts } from '../host/broker/listener.ts'
import { serveCallersOnly, serving } from '../host/broker/served-caller.ts'
import { endOrphanProcesses } from '../host/process/orphans.ts'
import { killOwnProcessWhenStuck } from '../host/process/process-deadline.ts'
import { SandboxError } from '../model/errors.ts'
import { type BrokerIdentity, buildOf, isReplaced, isServed } from './broker/request-check.ts'
import { commandName, runCommandLine } from './options/command-line.ts'

/** How long the broker stays after the last request. */
const IDLE_SECONDS = 300
/** Longer than any answer takes; a front waits one second and then uses Node. */
const STUCK_MS = 20_000

/** `ringfence broker`, started by the native front: serves `run`, `check` and `hook` of this user until it is idle. */
export async function broker(): Promise<number> {
  const env = { ...environment() }
  // SECURITY: the front holds the lock for us; two brokers would take each other's socket.
  if (env.RINGFENCE_BROKER_LOCK !== '3')
    throw new SandboxError('invalid-input', 'the broker is started by the native front, not by hand')
  killOwnProcessWhenStuck(STUCK_MS)
  const stateDir = stateDirectory(env)
  const program = join(dirname(process.argv[1] as string), 'main.cjs')
  await warmUp()
  const build = buildOf(program)
  // SECURITY: what was loaded may be the build before the one that is there now; it must not judge for the new one.
  if (build !== env.RINGFENCE_BROKER_BUILD) return 1
  serveCallersOnly()
  const requests = new Requests(idleMs(env.RINGFENCE_BROKER_IDLE))
  const listener = await listenForFronts(frontPath(), stateDir, (request, connection) =>
    requests.take(request, connection),
  )
  await requests.serve(listener, {
    secret: listener.secret,
    program,
    build,
    node: process.execPath,
    stateDir,
    env,
  })
  return 0
}

/** PLATFORM: timers take at most 2^31 - 1 ms. */
function idleMs(seconds: string | undefined): number {
  const ms = Number(seconds ?? IDLE_SECONDS) * 1000
  return ms >= 0 ? Math.min(ms, 2 ** 31 - 1) : IDLE_SECONDS * 1000
}

/** Loads and compiles what requests need. A configuration that is invalid now is reported to the next request. */
async function warmUp(): Promise<void> {
  const ringfence = await compose().catch(() => undefined)
  await warmPlans(ringfence).catch(() => {})
  const location = { workspace: '/', cwd: '/' }
  for (let round = 0; round < 50; round++) await ringfence?.judge({ line: 'git status | head -5' }, location)
  await Promise.all([
    import('./run.ts'),
    import('./hook.ts'),
    import('./check/command.ts'),
    import('./check/path.ts'),
  ])
}

/** Plans as `run` does, with the backend that it would use. */
async function warmPlans(ringfence: Ringfence | undefined): Promise<void> {
  for (let round = 0; round < 10; round++) await ringfence?.registry.select(ringfence.gate.plan({}))
}

/** The requests of one broker, and the time without any. */
class Requests {
  readonly #idleMs: number
  #active = 0
  #timer: NodeJS.Timeout | undefined
  #listener: BrokerListener | undefined
  #identity: BrokerIdentity | undefined
  #isEnding = false
  #isRetiring = false
  #ended: () => void = () => {}

  constructor(idleMs: number) {
    this.#idleMs = idleMs
  }

  /** Resolves when the listener has ended and every request is answered. */
  async serve(listener: BrokerListener, identity: BrokerIdentity): Promise<void> {
    this.#listener = listener
    this.#identity = identity
    const done = new Promise<void>((resolve) => {
      this.#ended = resolve
    })
    this.#wait()
    await listener.ended
    clearTimeout(this.#timer)
    this.#isEnding = true
    if (this.#active > 0) await done
  }

  take(request: FrontRequest, connection: FrontConnection): void {
    const identity = this.#identity
    // INVARIANT: a launched process connects its streams through the listener, so nothing is begun once it stops.
    if (!identity || this.#isRetiring || !isServed(request, identity, stateDirectory)) {
      connection.finish(0)
      if (identity && isReplaced(identity)) this.#retire()
      return
    }
    this.#active++
    clearTimeout(this.#timer)
    void serving(connection, () => answer(request, connection)).then((code) => {
      if (connection.gone.aborted) sweepLater()
      connection.finish(code)
      this.#active--
      if (this.#active === 0) this.#wait()
    })
  }

  /** Another build has taken our place, or nobody has asked for long: take no more requests, answer the rest and end. */
  #retire(): void {
    this.#isRetiring = true
    clearTimeout(this.#timer)
    if (this.#active === 0) this.#listener?.stop()
  }

  #wait(): void {
    if (this.#isEnding) this.#ended()
    else if (this.#isRetiring) this.#retire()
    else this.#timer = setTimeout(() => this.#retire(), this.#idleMs)
  }
}

/** A front that was killed while bubblewrap started may leave it waiting for ever, which the kernel does not end. */
const SWEEP_MS = 500
const sweepLater = (): void => void setTimeout(() => endOrphanProcesses(), SWEEP_MS)

/** The commands that a broker serves; a judgement starts nothing and is accepted at once, `run` when its plan is known. */
const SERVED: Readonly<Record<string, 'at once' | 'planned'>> = {
  check: 'at once',
  hook: 'at once',
  run: 'planned',
}

async function answer({ args }: FrontRequest, connection: FrontConnection): Promise<number> {
  const name = commandName(args)
  const when = Object.hasOwn(SERVED, name) ? SERVED[name] : undefined
  if (when === 'at once') connection.accept()
  return when === undefined ? 0 : runCommandLine(args)
}
