/**
 * `npm run measure:refusals -- --lines FILE [--workspace DIR] [--show N]`: how many command lines of real agents the
 * policy refuses (asks about or denies) behind the default plan of `ringfence run`, and how many of those would have
 * worked there. FILE has one command per line, or one JSON object per line: `cmd`, and optionally `ok: false` for a
 * command that is known to have failed. DIR is the directory that the lines were written for; it need not exist.
 *
 * A refused line is run as a script inside a sandbox of that plan, on an empty workspace and without network. It would
 * have worked if it exits with 0 and the sandbox blocked nothing.
 */
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { root, setup } from './setup.mjs'

const { values } = parseArgs({
  options: {
    lines: { type: 'string' },
    workspace: { type: 'string', default: '/workspace' },
    show: { type: 'string', default: '0' },
  },
})
if (values.lines === undefined) {
  process.stderr.write('usage: node scripts/measure-refusals.mjs --lines FILE [--workspace DIR] [--show N]\n')
  process.exit(2)
}
setup()
const { compilePolicy, compose, containedBy, judgeLine } = await import(
  join(root, 'dist', 'bench', 'library.js')
)

const RUN_MS = 10_000
/** The policy for a user whose home directory is not the workspace. */
const HOME = '/home/agent'

const rowOf = (line) => {
  try {
    const row = JSON.parse(line)
    if (typeof row?.cmd === 'string') return row
  } catch {
    // A plain command.
  }
  return { cmd: line }
}

/** What the default plan of `run` contains on this host. */
async function defaultContainment(ringfence, scratch) {
  const plan = ringfence.gate.plan({ workspace: scratch })
  const { name } = await ringfence.registry.select(plan)
  return containedBy({ plan, backend: name, home: HOME })
}

async function worksBehind(ringfence, cmd) {
  const workspace = mkdtempSync(join(tmpdir(), 'ringfence-line-'))
  writeFileSync(join(workspace, '.line.sh'), cmd)
  const mount = { source: workspace, target: values.workspace, mode: 'rw' }
  const sandbox = await ringfence.gate.open({
    mounts: [mount],
    limits: { diskMb: 256, outputBytes: 1 << 20 },
  })
  try {
    const { outcome, violations } = await sandbox.exec(['bash', `${values.workspace}/.line.sh`], {
      cwd: values.workspace,
      approve: () => true,
      limits: { wallMs: RUN_MS },
    })
    return outcome.kind === 'exited' && outcome.code === 0 && violations.length === 0
  } finally {
    await sandbox.close()
    rmSync(workspace, { recursive: true, force: true })
  }
}

const rows = readFileSync(values.lines, 'utf8')
  .split('\n')
  .filter((line) => line.trim() !== '')
  .map(rowOf)
const scratch = mkdtempSync(join(tmpdir(), 'ringfence-measure-'))
const ringfence = await compose({
  env: { ...process.env, RINGFENCE_HOME: join(scratch, 'state'), RINGFENCE_CONFIG: '/dev/null' },
})
try {
  const contains = await defaultContainment(ringfence, mkdtempSync(join(scratch, 'workspace-')))
  const place = { workspace: values.workspace, home: HOME, own: ['/tmp'] }
  const policy = compilePolicy({})
  const refused = (context) =>
    rows.flatMap((row) => {
      const { action, rules, reason } = judgeLine(policy, row.cmd, context)
      return action === 'ask' || action === 'deny' ? [{ ...row, action, rules, reason }] : []
    })
  const onHost = refused(place)
  const behind = refused({ ...place, contains })
  const working = []
  for (const row of behind) if (row.ok !== false && (await worksBehind(ringfence, row.cmd))) working.push(row)
  const share = (list) => `${list.length} (${((100 * list.length) / Math.max(1, rows.length)).toFixed(2)} %)`
  console.log(`lines                              ${rows.length}`)
  console.log(`refused on the host                ${share(onHost)}`)
  console.log(`refused behind the default plan    ${share(behind)}`)
  console.log(`of these, would have worked there  ${share(working)}`)
  for (const [name, list] of [...grouped(behind)].sort((a, b) => b[1].length - a[1].length)) {
    const worked = list.filter((row) => working.includes(row)).length
    console.log(
      `  ${String(list.length).padStart(5)} ${name}${worked > 0 ? ` (${worked} would have worked)` : ''}`,
    )
    for (const { cmd, reason } of list.slice(0, Number(values.show)))
      console.log(`        ${reason} <= ${JSON.stringify(cmd.slice(0, 160))}`)
  }
} finally {
  await ringfence.close()
  rmSync(scratch, { recursive: true, force: true })
}

function grouped(list) {
  const groups = new Map()
  for (const row of list) {
    const key = `${row.action} ${row.rules[0]}`
    groups.set(key, [...(groups.get(key) ?? []), row])
  }
  return groups
}
