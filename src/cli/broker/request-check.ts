import { statSync } from 'node:fs'
import type { FrontRequest } from '../../host/broker/front-connection.ts'

/** The version of guest/front/front.h. */
const PROTOCOL = '2'

/** What a broker was started as; a request from elsewhere is left to Node. */
export type BrokerIdentity = {
  readonly secret: string
  /** The file whose build it is. */
  readonly program: string
  readonly build: string
  readonly node: string
  readonly stateDir: string
  readonly env: Readonly<Record<string, string | undefined>>
}

/** Tells one build of this program from another, also at the same path; as in guest/front/request.c. */
export function buildOf(program: string): string {
  const { dev, ino, size, mtimeNs, ctimeNs } = statSync(program, { bigint: true })
  return [dev, ino, size, mtimeNs, ctimeNs].join(':')
}

/** Variables that Node itself reads, wherever the caller's are passed along. */
const READ_BY_NODE = /^(HOME|TMPDIR|TMP|TEMP|TZ|LANG|LANGUAGE|LC_.*)$/

/** Whether the request comes from this build, and reads the same files as a process of its own would. */
export function isServed(
  request: FrontRequest,
  broker: BrokerIdentity,
  stateDirOf: (env: FrontRequest['env']) => string,
): boolean {
  return (
    request.protocol === PROTOCOL &&
    request.secret === broker.secret &&
    request.build === broker.build &&
    request.node === broker.node &&
    stateDirOf(request.env) === broker.stateDir &&
    hasSameVariables(request.env, broker.env)
  )
}

/** Whether another build has taken the place of the one that this broker was started from. */
export function isReplaced({ program, build }: BrokerIdentity): boolean {
  try {
    return buildOf(program) !== build
  } catch {
    return true
  }
}

function hasSameVariables(theirs: BrokerIdentity['env'], ours: BrokerIdentity['env']): boolean {
  const names = new Set(
    [...Object.keys(theirs), ...Object.keys(ours)].filter((name) => READ_BY_NODE.test(name)),
  )
  return [...names].every((name) => theirs[name] === ours[name])
}
