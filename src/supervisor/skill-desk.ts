import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { SandboxError } from '../model/errors.ts'
import type { Json } from '../model/event.ts'
import type { SkillResult, SkillRunner } from '../skills/runner.ts'

/** Skills for callers from outside: only those that the operator has inspected, by name, with nothing granted on top. */
export class SkillDesk {
  readonly #runner: () => Promise<SkillRunner>

  constructor(runner: () => Promise<SkillRunner>) {
    this.#runner = runner
  }

  /** The sums of this server, over all callers. */
  async usage(): Promise<readonly unknown[]> {
    return (await this.#runner()).usage()
  }

  async run(name: string, input: unknown, agentId: string | undefined): Promise<unknown> {
    const runner = await this.#runner()
    // SECURITY: a name, never a path: a caller must not point us at a directory of its choice.
    const known = (await runner.list()).some((skill) => skill.name === name)
    if (!known)
      throw new SandboxError('not-found', `there is no skill \`${name.slice(0, 64)}\``, {
        hint: 'an operator adds one with `ringfence skill inspect DIR`',
      })
    const workspace = mkdtempSync(join(tmpdir(), 'ringfence-skill-'))
    try {
      return skillJson(await runner.run(name, { input: (input ?? null) as Json, agentId, workspace }))
    } finally {
      rmSync(workspace, { recursive: true, force: true })
    }
  }
}

/** The contract's shape of one run. */
function skillJson(result: SkillResult): unknown {
  const { skill, execId, hash, fuel, durationMs, violations, log, truncated, withheld } = result
  return {
    ...('ok' in result ? { ok: result.ok } : { error: result.error }),
    fuel,
    duration_ms: Math.round(durationMs * 1000) / 1000,
    violations: violations.map(({ violationType, details }) => ({ violation_type: violationType, details })),
    skill,
    exec_id: execId,
    hash,
    truncated,
    withheld,
    log,
  }
}
