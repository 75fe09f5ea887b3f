import { runText, touch } from '../effects.ts'
import { asked, boxed, unseen } from '../finding.ts'
import { parseOptions } from '../options.ts'
import { UNKNOWN } from '../shell/scope.ts'
import type { Call, Handler } from '../walk.ts'

/** Shell escapes of the clients, in statements or in input files. */
const ESCAPE =
  /(?:\\!|^\s*!|\bsystem\b|\.shell|\.system|\\copy[^;]*program|COPY\b[^;]*\bPROGRAM\b)\s*['"]?([^;\n'"]*)/im

function judgeStatements(call: Call, text: string): void {
  const found = ESCAPE.exec(text)
  if (!found) return
  call.node.findings.push(unseen('databases/shell', 'the client runs a shell command'))
  if (found[1]?.trim()) runText(call, found[1])
}

const client: Handler = (call) => {
  const { options } = parseOptions(
    {
      short: 'cefhpUdPuDroOLvVF',
      long: 'command execute file host port username dbname user database output init-command pager',
      effects: {},
    },
    call.args,
  )
  call.node.findings.push(asked('databases/client', 'works on a database'))
  for (const { name, value = '' } of options) {
    if (['-c', '--command', '-e', '--execute', '--init-command'].includes(name)) judgeStatements(call, value)
    if (name === '-f' || name === '--file') touch(call, value, 'read')
    if (name === '-o' || name === '--output') touch(call, value, 'write')
    if (name === '--pager') runText(call, value)
  }
  judgeStatements(call, call.stdin.text)
  return UNKNOWN
}

const sqlite: Handler = (call) => {
  const { operands } = parseOptions(
    {
      single: true,
      effects: { '-cmd': 'data', '-init': 'read', '-separator': 'data', '-nullvalue': 'data' },
    },
    call.args,
  )
  call.node.findings.push(boxed('databases/sqlite', 'opens a database file'))
  if (operands[0] !== undefined && operands[0] !== ':memory:') touch(call, operands[0], 'write')
  const text = [...call.args.slice(1), call.stdin.text].join('\n')
  judgeStatements(call, text)
  for (const match of text.matchAll(
    /\.(?:output|once|backup|save|dump|excel|log)\s+(\S+)|\b(?:writefile|readfile|edit|load_extension)\s*\(\s*'([^']*)'|\.(?:read|import|load|open)\s+(\S+)/g,
  ))
    touch(
      call,
      match[1] ?? match[2] ?? match[3] ?? '',
      match[1] !== undefined || match[0].startsWith('writefile') ? 'write' : 'read',
    )
  if (/load_extension|\.load\b/.test(text))
    call.node.findings.push(unseen('databases/extension', 'loads a library'))
  return UNKNOWN
}

/** Database clients. */
export const DATABASES: Readonly<Record<string, Handler>> = {
  ...Object.fromEntries(
    'psql mysql mariadb pgcli mycli sqlcmd sqlplus clickhouse-client duckdb-cli usql cockroach'
      .split(' ')
      .map((name) => [name, client]),
  ),
  sqlite3: sqlite,
  sqlite,
  duckdb: sqlite,
}
