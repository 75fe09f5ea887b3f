import { type ChildProcess, spawn } from 'node:child_process'
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { packageRoot } from '../conformance/world.ts'
import { type Answer, type CallOptions, callAt } from './test-server.ts'

/** The built server as a separate process, which tests can kill. */
export type Process = {
  readonly child: ChildProcess
  readonly pid: number
  readonly url: string
  readonly key: string
  readonly said: () => string
  readonly call: (method: string, path: string, options?: CallOptions) => Promise<Answer>
  readonly ended: Promise<{ readonly code: number | null; readonly signal: string | null }>
}

export async function startProcess(
  home: string,
  {
    args = [],
    wrap = [],
    key,
  }: { readonly args?: readonly string[]; readonly wrap?: readonly string[]; readonly key?: string } = {},
): Promise<Process> {
  const program = join(packageRoot(), 'dist', 'cli', 'ringfence.cjs')
  if (!existsSync(program)) throw new Error('the command line is not built: npm run build')
  const argv = [
    ...wrap,
    process.execPath,
    program,
    'serve',
    '--json',
    '--port',
    '0',
    ...(key ? [] : ['--print-key']),
    ...args,
  ]
  const child = spawn(argv[0] as string, argv.slice(1), {
    env: { PATH: process.env.PATH, HOME: home, RINGFENCE_HOME: join(home, 'state') },
    cwd: home,
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  let said = ''
  child.stderr?.on('data', (chunk) => (said += chunk))
  const ended = new Promise<{ code: number | null; signal: string | null }>((resolve) =>
    child.once('exit', (code, signal) => resolve({ code, signal })),
  )
  const line = await Promise.race([
    new Promise<string>((resolve) =>
      createInterface({ input: child.stdout as NodeJS.ReadableStream }).once('line', resolve),
    ),
    ended.then(() => {
      throw new Error(`the server ended at once: ${said}`)
    }),
  ])
  const told = JSON.parse(line) as { url: string; pid: number; key?: string }
  const secret = key ?? (told.key as string)
  return {
    child,
    pid: told.pid,
    url: told.url,
    key: secret,
    said: () => said,
    ended,
    call: (method, path, options = {}) => callAt(told.url, method, path, { key: secret, ...options }),
  }
}

/** All descendants of this process with their start times: a PID alone may be reused. */
export function descendants(root: number): string[] {
  const parents = new Map<number, { parent: number; start: string }>()
  for (const name of readdirSync('/proc')) {
    if (!/^\d+$/.test(name)) continue
    const stat = statOf(Number(name))
    if (stat) parents.set(Number(name), stat)
  }
  const below = (pid: number): boolean => {
    for (let at = parents.get(pid); at; at = parents.get(at.parent)) if (at.parent === root) return true
    return false
  }
  return [...parents].filter(([pid]) => below(pid)).map(([pid, { start }]) => `${pid}:${start}`)
}

export const isAlive = (one: string): boolean => {
  const [pid, start] = one.split(':')
  return statOf(Number(pid))?.start === start
}

function statOf(pid: number): { parent: number; start: string } | undefined {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
    const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
    return fields[0] === 'Z' ? undefined : { parent: Number(fields[1]), start: fields[19] as string }
  } catch {
    return undefined
  }
}

export async function until(done: () => boolean | Promise<boolean>, ms = 20_000): Promise<boolean> {
  const deadline = performance.now() + ms
  while (performance.now() < deadline) {
    if (await done()) return true
    await new Promise((resolve) => setTimeout(resolve, 10))
  }
  return false
}
