import type { McpServerConfig } from '../mcp-config.ts'
import type { Described, SettingPath } from './setting.ts'

/** What every setting of `[[mcp]]` means. */
export const MCP_SETTINGS: Described<`mcp.${SettingPath<McpServerConfig>}`> = {
  'mcp.name': 'Prefix of the tools of the server: `name__tool`.',
  'mcp.command':
    'A program that speaks MCP on its standard input and output; it runs in a sandbox of its own. Either this or `url`.',
  'mcp.url': 'A remote server (streamable HTTP), reached through the egress proxy.',
  'mcp.headers':
    // biome-ignore lint/suspicious/noTemplateCurlyInString: the setting's own syntax.
    'Headers of requests to `url`; `${NAME}` stands for a secret of `secrets`, which the proxy inserts.',
  'mcp.read': ['Host paths that the program may read.', []],
  'mcp.write': ['Host paths that the program may write.', []],
  'mcp.hosts': ['Hosts that the program may reach; none: it has no network.', []],
  'mcp.secrets': [
    '`NAME=SECRET@HOST`, as in `--secret`: the program sees a placeholder, the proxy has the value.',
    [],
  ],
  'mcp.env': 'Environment variables of the program.',
  'mcp.memory_mb': ['Memory limit of the program, in MiB.', 1024],
  'mcp.tenants':
    'Tenants whose keys may use it. Absent: only keys with the scope `admin`, and `ringfence mcp` on this machine.',
  'mcp.default_action': ['What happens to calls that no rule matches.', 'ask'],
  'mcp.timeout_secs': ['Timeout of one call.', 60],
  'mcp.max_result_bytes': ['The most bytes of one result.', 1_048_576],
  'mcp.rule': 'Rules for calls of tools.',
  'mcp.rule.id': 'Name of the rule in decisions and in the audit log.',
  'mcp.rule.tool': 'A regular expression for the whole name of the tool. Absent: every tool of the server.',
  'mcp.rule.arguments': 'Conditions on arguments; all of them must hold.',
  'mcp.rule.arguments.path': 'A JSON path to the argument.',
  'mcp.rule.arguments.regex': 'A regular expression for the whole value.',
  'mcp.rule.action': 'What happens to a call that the rule matches.',
  'mcp.rule.why': 'The reason that people and agents are shown.',
  'mcp.rule.match':
    'Examples that must match, checked when the file is loaded: `tool {"argument": "value"}`.',
  'mcp.rule.not_match': 'Examples that must not match, checked when the file is loaded.',
}
