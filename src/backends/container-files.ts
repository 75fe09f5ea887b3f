import { mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { caller, isAlive, processKey } from '../host/system.ts'
import { SandboxError } from '../model/errors.ts'
import type { Plan } from '../model/plan.ts'

/** A user and group id. */
export type User = { readonly uid: number; readonly gid: number }

/** The user of the sandbox's processes: the one that the plan names, or the caller. */
export const userFor = (plan: Plan): User => plan.runAs ?? caller()

/** Creates a private directory with the plan's small files, readable inside the sandbox and removed with it. */
export function containerFiles(stateDir: string, plan: Plan, { uid, gid }: User): string {
  const run = join(stateDir, 'run')
  mkdirSync(run, { recursive: true, mode: 0o700 })
  sweep(run)
  const dir = mkdtempSync(join(run, `container-${processKey(process.pid)}-`))
  const home = plan.own[0]
  const name = home ? 'user' : uid === 0 ? 'root' : 'agent'
  const shell = home ? '/bin/bash' : '/bin/sh'
  const write = (file: string, text: string): void => writeFileSync(join(dir, file), text, { mode: 0o444 })
  try {
    write(
      'passwd',
      `${name}:x:${uid}:${gid}::${home ?? '/tmp'}:${shell}\nnobody:x:65534:65534::/nonexistent:/bin/false\n`,
    )
    write('group', `${name}:x:${gid}:\nnogroup:x:65534:\n`)
    for (const [index, { text }] of plan.files.entries()) write(`plan-${index}`, text)
    return dir
  } catch (cause) {
    rmSync(dir, { recursive: true, force: true })
    throw new SandboxError('launch-failed', `cannot write below ${stateDir}`, { cause })
  }
}

const swept = new Set<string>()

/** Removes directories of processes that have exited; runs once per process. */
function sweep(run: string): void {
  if (swept.has(run)) return
  swept.add(run)
  for (const name of readdirSync(run)) {
    const owner = /^container-(\d+-\d+)-/.exec(name)?.[1]
    if (owner !== undefined && !isAlive(owner)) rmSync(join(run, name), { recursive: true, force: true })
  }
}

/** SECURITY: a plan that containers cannot fulfil is rejected, never weakened. */
export function refuseUnfit(plan: Plan, backend: string): void {
  const unfit =
    plan.network.mode === 'full'
      ? 'cannot use the host’s network'
      : plan.mounts.some(({ target }) => target === '/')
        ? 'cannot mount the host’s root'
        : plan.mounts.some(({ overlay }) => overlay)
          ? 'does not support review'
          : plan.root && plan.masks.length > 0
            ? 'cannot hide paths in a writable root'
            : undefined
  if (unfit)
    throw new SandboxError('unsupported', `${backend} ${unfit}`, { hint: 'use bubblewrap, or ask for less' })
}
