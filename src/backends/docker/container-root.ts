import { randomUUID } from 'node:crypto'
import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { hostPath } from '../../host/files/facts.ts'
import { HANDOVER_NAME } from '../../host/guest/protocol.ts'
import { startChannelProcess } from '../../host/process/channel-process.ts'
import { copyDisk, syncDisk } from '../../host/root/disk-image.ts'
import { diskUsageOf } from '../../host/system.ts'
import { SandboxError } from '../../model/errors.ts'
import type { Plan, WritableRoot } from '../../model/plan.ts'
import type { DiskOwner, Usage } from '../backend.ts'
import { launchEnvironment } from '../bubblewrap/launch.ts'
import { ContainerSandbox, type ContainerTransport } from '../container-handle.ts'
import { RUN_BYTES, rootOperations } from '../writable-root.ts'
import { temporaryBytes } from './launch.ts'

/** Where the container sees the directory with the socket of its root. */
export const HANDOVER_TARGET = '/.ringfence/root'
/** The first of the expected mounts: PID 1 receives its root there. */
export const EXPECTED_ROOT = ['root', `${HANDOVER_TARGET}/${HANDOVER_NAME}`] as const

/** The directory with the socket, in the directory of the container's files. */
export const handoverDirectory = (files: string): string => join(files, 'root')

/** Creates what a container with a writable root needs before it is started. */
export function prepareHandover(files: string): void {
  mkdirSync(handoverDirectory(files), { mode: 0o700 })
  // The host's id would not change when a sandbox that was paused without its memory starts again.
  writeFileSync(join(files, 'boot-id'), `${randomUUID()}\n`, { mode: 0o444 })
}

function fileMount(path: string, target: string): string[] {
  const { fact } = hostPath(path)
  if (!fact) throw new SandboxError('launch-failed', `\`${path}\` is missing`)
  return ['mount', 'ro', fact.real, fact.dev, fact.ino, target]
}

/** In the order in which they are mounted: what is in memory comes before what is mounted in it. */
const vectorOf = (plan: Plan, root: WritableRoot, files: string): readonly string[] => [
  ...['temporary', '/tmp', `mode=1777,size=${temporaryBytes(plan)}`],
  ...['temporary', '/run', `mode=0755,size=${RUN_BYTES}`],
  ...rootOperations(plan, root),
  ...plan.files.flatMap(({ target }, index) => fileMount(join(files, `plan-${index}`), target)),
  ...fileMount(join(files, 'boot-id'), '/proc/sys/kernel/random/boot_id'),
]

/** What the root of a container is made of. */
export type ContainerRoot = {
  readonly agent: string
  readonly files: string
  /** The first process of the container, as the host sees it. */
  readonly pid: number
}

/**
 * Assembles the root of a container that is started and waits for its configuration. Resolves when the container can take it:
 * the process that hands it over ends then, or after half a minute.
 */
export async function assembleRoot(
  plan: Plan,
  root: WritableRoot,
  { agent, files, pid }: ContainerRoot,
): Promise<void> {
  const { channel, exited } = startChannelProcess({
    file: agent,
    args: ['container-root', String(pid), handoverDirectory(files)],
    env: launchEnvironment(vectorOf(plan, root, files), {}),
    cwd: '/',
    control: false,
  })
  const ready = new Promise<true>((resolve) => channel.once('data', () => resolve(true)))
  channel.on('error', () => {})
  const ended = await Promise.race([ready, exited])
  if (ended === true) return
  const said = ended.said.trim().split('\n')[0] ?? ''
  throw new SandboxError('launch-failed', `the sandbox could not be set up: ${said || 'no root'}`)
}

/** A container with a root of its own, whose disk can be copied. */
export class RootContainerSandbox extends ContainerSandbox implements DiskOwner {
  readonly #root: WritableRoot

  constructor(plan: Plan, root: WritableRoot, transport: ContainerTransport) {
    super(plan, transport)
    this.#root = root
  }

  override usage(): Usage | undefined {
    const used = super.usage()
    return used && { ...used, diskBytes: diskUsageOf(this.#rootPath()) }
  }

  /** The root as the host sees it, through the container's first process. */
  #rootPath(): string | undefined {
    const { pid } = this.container
    return pid === undefined ? undefined : `/proc/${pid}/root`
  }

  /** The agent's answer to a file operation shows that it has stopped all commands. */
  async copyDisk(to: string): Promise<void> {
    await this.still(async () => {
      await this.files.stat('/')
      const root = this.#rootPath()
      if (root === undefined) throw new SandboxError('wrong-state', 'the sandbox is gone')
      await syncDisk(root)
      await copyDisk(this.#root.disk.real, to)
    })
  }
}
