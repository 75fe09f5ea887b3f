import { constants } from 'node:os'
import { resolve } from 'node:path'
import { compose } from '../compose/compose.ts'
import { exitCodeOf } from '../model/command.ts'
import { SandboxError } from '../model/errors.ts'
import { visibleJson } from '../model/text/visible.ts'
import { withoutLinks } from './check/host-decision.ts'
import { parseOptions } from './options/options.ts'
import { resultJson } from './run.ts'
import { approver } from './terminal/approver.ts'
import { out } from './terminal/output.ts'

const OPTIONS = {
  command: { type: 'string', short: 'c' },
  workspace: { type: 'string', short: 'w' },
  yes: { type: 'boolean', short: 'y' },
  'agent-id': { type: 'string' },
} as const

/** `ringfence auto`: the router decides where a line runs. Without a sandbox the line does not run; it never falls back to the host. */
export async function auto(args: readonly string[]): Promise<number> {
  const { values } = parseOptions('auto', args, OPTIONS)
  const line = values.command
  if (line === undefined)
    throw new SandboxError('no-command', 'no command given', { hint: 'ringfence auto -c "shell line"' })
  const ringfence = await compose({ config: values.config, policy: values.policy })
  const { AutoSandboxRouter, INERT_GIT } = await import('../policy/router.ts')
  const workspace = resolve(ringfence.cwd, values.workspace ?? '.')
  const router = AutoSandboxRouter.fromConfig(ringfence.config, {
    workspace,
    home: ringfence.home,
    inertGit: true,
  })
  const { mode, decision } = router.route(line)
  const location = { workspace, cwd: ringfence.cwd }
  // A program in `never_sandbox` runs on the host by the operator's choice, whatever it reads.
  const isOnHost =
    mode === 'host' &&
    (decision.action !== 'allow' || withoutLinks(decision, line, location).action === 'allow')
  const agentId = values['agent-id'] ?? ringfence.env.RINGFENCE_AGENT_ID
  const spec = {
    workspace,
    // SECURITY: `inertGit` above is true only with these variables.
    ...(isOnHost ? { backend: 'native', env: INERT_GIT } : {}),
    ...(agentId === undefined ? {} : { agentId }),
  }
  try {
    const sandbox = await ringfence.gate.open(spec, { judgedForHost: true })
    sandbox.onClose(() => ringfence.close())
    try {
      const done = await sandbox.exec(line, {
        last: true,
        stdin: 'inherit',
        output: values.json ? undefined : 'inherit',
        ...approver(values),
      })
      if (values.json) out(`${visibleJson(resultJson(sandbox, done))}\n`)
      return exitCodeOf(done.outcome, constants.signals)
    } finally {
      await sandbox.close()
    }
  } finally {
    await ringfence.close()
  }
}
