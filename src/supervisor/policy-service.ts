import { createHash } from 'node:crypto'
import { mkdirSync } from 'node:fs'
import { dirname } from 'node:path'
import { assertPublicUrl } from '../egress/fetch/safe-fetch.ts'
import { parseConfig } from '../host/config-file.ts'
import { writeAtomically } from '../host/files/atomic-file.ts'
import { readText } from '../host/system.ts'
import type {
  CheckedPolicy,
  Inspected,
  PolicyDescription,
  PolicyHash,
  Suggestion,
  Verdict,
} from '../model/api/policy.ts'
import type { Config } from '../model/config.ts'
import { SandboxError } from '../model/errors.ts'
import { oneOf } from '../model/shape.ts'
import { describePolicy } from '../policy/describe.ts'
import { PATH_OPS } from '../policy/paths/paths.ts'
import { compilePolicy, examplesOf, rulesOf } from '../policy/policy.ts'
import { suggestFrom } from '../policy/suggest.ts'
import { judgeHere, policiesFor } from './judge-path.ts'

/** What the policy service is made of. */
export type PolicyServiceParts = {
  readonly file: string
  readonly home: string
  readonly current: () => Config
  readonly hash: () => string
  readonly reload: () => Promise<PolicyHash>
  readonly inspect: (command: Asked, directory: { workspace: string; cwd: string }) => Promise<Inspected>
}
type Asked = { readonly line: string } | { readonly argv: readonly [string, ...string[]] }

const baseOf = (text: string): string => createHash('sha256').update(text).digest('hex').slice(0, 32)

/** Reads, checks and changes the policy for the API. */
export class PolicyService {
  readonly #parts: PolicyServiceParts
  #saving: Promise<unknown> = Promise.resolve()

  constructor(parts: PolicyServiceParts) {
    this.#parts = parts
  }

  hash(): string {
    return this.#parts.hash()
  }

  async describe(forOperator: boolean): Promise<PolicyDescription> {
    const whole = describePolicy(this.#parts.current(), this.#parts.home)
    // SECURITY: only the operator may see which directories and private addresses the policy names.
    return forOperator
      ? whole
      : { ...whole, allowed_host_prefixes: [], network: { ...whole.network, allow_private: [] } }
  }

  /** The policy file as it is on disk. */
  source() {
    const { file } = this.#parts
    const text = readText(file)
    return { file, exists: text !== undefined, text: text ?? '', base: baseOf(text ?? '') }
  }

  async check(text: string): Promise<CheckedPolicy> {
    const config = await parseConfig(this.#parts.file, text)
    const examples = rulesOf(config).flatMap(examplesOf)
    compilePolicy(config)
    const description = describePolicy(config, this.#parts.home)
    return { rules: config.policy?.rule?.length ?? 0, examples, description }
  }

  /** Saves one change at a time; rejects a change to an outdated text, and a text that does not load changes nothing. */
  save(text: string, base: string): Promise<PolicyHash> {
    const work = async (): Promise<PolicyHash> => {
      const before = this.source()
      if (before.base !== base)
        throw new SandboxError('conflict', 'the policy has changed since you read it', {
          hint: 'reload it and repeat your change',
        })
      await this.check(text)
      mkdirSync(dirname(before.file), { recursive: true, mode: 0o700 })
      writeAtomically(before.file, text)
      try {
        return await this.#parts.reload()
      } catch (error) {
        // Some errors appear only when the policy is activated; the old text must be there for the next start.
        writeAtomically(before.file, before.text)
        throw error
      }
    }
    const done = this.#saving.then(work, work)
    this.#saving = done.catch(() => {})
    return done
  }

  inspect(
    command: Asked,
    {
      workspace = '/workspace',
      cwd = workspace,
    }: { workspace?: string | undefined; cwd?: string | undefined },
  ): Promise<Inspected> {
    return this.#parts.inspect(command, { workspace, cwd })
  }

  async tryPath(path: string, op: string, workspace: string | undefined): Promise<Verdict> {
    const request = { path, op: oneOf(...PATH_OPS).parse(op, 'op') }
    const verdicts = policiesFor(this.#parts.current(), request.op, workspace).map((policy) =>
      judgeHere(policy, request),
    )
    return (
      verdicts.find(({ verdict }) => verdict === 'deny') ??
      verdicts[0] ?? { verdict: 'deny', reason: 'no policy covers this path' }
    )
  }

  async tryUrl(url: string): Promise<Verdict> {
    const { network = {} } = this.#parts.current()
    try {
      const { addresses } = await assertPublicUrl(url, {
        ...(network.allow_hosts && { allowHosts: network.allow_hosts }),
        ...(network.allow_private && { allowPrivate: network.allow_private }),
      })
      return { verdict: 'allow', reason: 'the name and all its addresses are public', addresses }
    } catch (error) {
      if (!(error instanceof SandboxError)) throw error
      return { verdict: 'block', reason: error.message }
    }
  }

  async suggest(records: readonly Readonly<Record<string, unknown>>[]): Promise<readonly Suggestion[]> {
    return suggestFrom(records)
  }
}
