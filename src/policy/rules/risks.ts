import { RISK_NAMES, type Risk } from '../../model/risk.ts'

/** The risks of every built-in rule, by id. A missing row is a compile error. */

/** The words of a space-separated list, as a type. */
type Words<List extends string, Found = never> = List extends `${infer First} ${infer Rest}`
  ? Words<Rest, Found | First>
  : Found | List

const rows = <const List extends string>(
  risks: readonly Risk[],
  ids: List,
): Record<Words<List>, readonly Risk[]> =>
  Object.fromEntries(ids.split(' ').map((id) => [id, risks])) as Record<Words<List>, readonly Risk[]>

/** Text that cannot be parsed could have any effect. */
const ANYTHING = RISK_NAMES
/**
 * Code that is not known before it runs. It may do to the workspace and through the permitted network what every program
 * of the workspace may (`npm test`), and no rule asks about those in a sandbox.
 */
const CODE = ['loopback', 'outside-write', 'machine-read', 'processes', 'persistence', 'privileges'] as const
const NETWORK = ['network'] as const
const REMOTE = ['network', 'loopback'] as const
const PUBLISH = ['network', 'publish'] as const
const MACHINE = ['outside-write', 'privileges', 'persistence'] as const
const WRITE = ['outside-write'] as const
const READ = ['machine-read'] as const
const WORKSPACE = ['workspace-loss'] as const
const LATER = ['persistence', 'outside-write', 'processes', 'loopback'] as const
const DATABASE = ['network', 'loopback', 'workspace-loss'] as const
// In the workspace, writing an unknown file is no more than writing a known one; deleting may take all of it.
const SOME_WRITE = ['outside-write', 'persistence'] as const
const SOME_DELETE = [...SOME_WRITE, 'workspace-loss'] as const
const SOME_READ = ['machine-read', 'workspace-credentials'] as const
const SECRETS = ['machine-read', 'granted-secret'] as const
const NONE = [] as const

/** Obfuscation in the line itself: text that cannot be parsed, or shell code that is known only at run time. */
const SHELL = {
  ...rows(ANYTHING, 'shell/unreadable shell/too-long shell/too-deep shell/too-many shell/noncharacter'),
  ...rows(
    ANYTHING,
    'shell/empty shell/nul shell/budget shell/doubt shell/foreign shell/zsh shell/arithmetic',
  ),
  ...rows(ANYTHING, 'shell/unknown-expansion shell/double-evaluation shell/exec-input shell/dynamic'),
  ...rows(ANYTHING, 'shell/dynamic-code shell/dynamic-program shell/eval shell/hash shell/enable'),
  ...rows(ANYTHING, 'unicode/control unicode/invisible unicode/lookalike unicode/program'),
  ...rows(ANYTHING, 'programs/arguments programs/unknown-launcher wrappers/xargs-shell wrappers/env-split'),
  ...rows(CODE, 'shell/start shell/source shell/read shell/trap shell/alias shell/let shell/printf'),
  ...rows(CODE, 'shell/complete shell/options environment/path environment/command environment/poison'),
  ...rows(CODE, 'environment/ifs environment/text environment/library'),
}

/** Programs that run other code. */
const RUNNING = {
  ...rows(CODE, 'code/dynamic code/dynamic-file code/long code/hidden code/spawn code/outside code/made'),
  ...rows(CODE, 'code/stream code/load code/inline code/module code/workspace code/system code/interactive'),
  ...rows(
    CODE,
    'code/environment build/compiler build/linker build/exec build/cmake build/generate build/jvm',
  ),
  ...rows(CODE, 'build/make-eval build/make-program build/makefile build/go-exec archives/test-command'),
  ...rows(CODE, 'editors/command editors/script editors/code editors/start editors/debugger editors/stream'),
  ...rows(CODE, 'programs/copy programs/ldd programs/dc programs/jq programs/pager programs/convert'),
  ...rows(
    CODE,
    'programs/option programs/page wrappers/strace wrappers/loader wrappers/trace wrappers/script',
  ),
  ...rows(
    CODE,
    'wrappers/terminal wrappers/lines text/sed text/sed-exec text/awk text/awk-run text/awk-file',
  ),
  ...rows(CODE, 'packages/run packages/exec databases/shell databases/extension databases/sqlite git/run'),
  ...rows(CODE, 'git/setting git/exec-path git/repository git/dynamic git/program git/template'),
  ...rows(ANYTHING, 'code/catastrophe git/transport packages/shell'),
  ...rows(SOME_WRITE, 'text/awk-write paths/open-write'),
  ...rows(SOME_DELETE, 'paths/open-delete'),
  ...rows(CODE, 'shell/history text/awk-load programs/script'),
  ...rows(SOME_READ, 'paths/broad-read'),
  ...rows(SOME_READ, 'text/awk-files text/awk-read text/awk-environment'),
  ...rows(['processes'], 'editors/attach processes/kill wrappers/daemon system/message'),
  ...rows(['network', 'publish', 'granted-secret'], 'agents/start'),
  ...rows([...SECRETS, ...NETWORK], 'wrappers/doppler wrappers/aws-vault wrappers/chamber'),
}

/** Programs that access other machines or services. */
const REACHING = {
  ...rows(NETWORK, 'network/request network/lookup network/tar network/copy network/proxy network/address'),
  ...rows(NETWORK, 'network/upload network/ssh network/metadata code/network packages/source'),
  ...rows(NETWORK, 'packages/registry packages/dynamic git/network exfiltration/address'),
  ...rows(NETWORK, 'exfiltration/output exfiltration/upload exfiltration/lookup exfiltration/raw'),
  ...rows(
    NETWORK,
    'exfiltration/ssh exfiltration/copy exfiltration/mail exfiltration/share exfiltration/code',
  ),
  ...rows([...NETWORK, ...CODE], 'network/ssh-option'),
  ...rows(['network', 'downloaded-code', ...CODE], 'download/execute'),
  ...rows(REMOTE, 'network/private network/scheme network/raw network/service network/scan network/awk'),
  ...rows(REMOTE, 'network/shell-socket network/reverse-shell network/tunnel databases/client'),
  ...rows(REMOTE, 'business/databases'),
  ...rows(['loopback'], 'network/listen network/offer network/socket containers/daemon containers/run'),
  ...rows(
    ['loopback'],
    'containers/remove containers/exec containers/compose containers/settings session/bus',
  ),
  ...rows(
    [...PUBLISH, 'loopback'],
    'containers/push containers/account exfiltration/image business/containers',
  ),
  ...rows([...PUBLISH, 'persistence'], 'git/remote'),
  ...rows(PUBLISH, 'git/publish git/push git/mail network/mail exfiltration/push exfiltration/publish'),
  ...rows(PUBLISH, 'packages/publish packages/account cloud/account cluster/change business/publish'),
  ...rows(
    PUBLISH,
    'business/cloud business/infrastructure business/machines business/cluster business/github',
  ),
  ...rows(PUBLISH, 'business/mail business/payments business/registry'),
  ...rows([...NETWORK, 'granted-secret'], 'secrets/variable exfiltration/variable'),
  ...rows(DATABASE, 'business/migrations business/rails business/artisan business/django'),
}

/** Files, credentials and the machine. */
const HOST = {
  ...rows(READ, 'paths/system-read paths/other-home paths/home-read paths/outside-read'),
  ...rows(READ, 'secrets/tree secrets/git secrets/history'),
  // Services of the session hand these out.
  ...rows([...READ, 'loopback'], 'secrets/keyring secrets/ssh privacy/screen'),
  ...rows([...READ, ...WRITE, 'persistence'], 'secrets/location secrets/system'),
  ...rows(READ, 'paths/whole-disk'),
  ...rows([...READ, ...NETWORK], 'secrets/cluster'),
  ...rows(SOME_READ, 'secrets/search'),
  ...rows(['workspace-credentials'], 'secrets/project secrets/workspace'),
  ...rows(SECRETS, 'secrets/environment'),
  ...rows([...SECRETS, 'loopback'], 'secrets/command'),
  ...rows(
    WRITE,
    'paths/outside-write paths/home-write paths/temporary destructive/system destructive/shared',
  ),
  ...rows(WRITE, 'destructive/other-home git/apply files/temporary'),
  ...rows([...WRITE, ...WORKSPACE], 'destructive/root destructive/disk'),
  ...rows(WORKSPACE, 'destructive/workspace destructive/shred paths/workspace-write files/dd files/rename'),
  ...rows(WORKSPACE, 'files/split archives/pack git/clean git/branch git/tag git/stash git/reset git/reflog'),
  ...rows(WORKSPACE, 'git/gc git/ref git/rewrite git/init git/notes git/worktree'),
  ...rows(LATER, 'persistence/startup persistence/service persistence/schedule persistence/session'),
  ...rows(LATER, 'git/global-setting packages/settings system/service system/crontab session/terminal'),
  ...rows(['persistence'], 'persistence/workspace persistence/automation persistence/scripts'),
  ...rows(['persistence'], 'protect/name protect/soft'),
  ...rows([...MACHINE, ...NETWORK], 'system/packages'),
  ...rows(MACHINE, 'system/settings system/name system/log privilege/become privilege/accounts'),
  ...rows(MACHINE, 'privilege/firewall privilege/clock privilege/schedule privilege/network privilege/power'),
  ...rows(MACHINE, 'privilege/boot privilege/kernel privilege/mount privilege/namespaces privilege/capsh'),
  ...rows(MACHINE, 'privilege/setuid privilege/owner'),
  ...rows(ANYTHING, 'escape/process escape/device escape/raw-disk escape/container escape/container-daemon'),
  ...rows(ANYTHING, 'escape/container-mount escape/pod escape/bus escape/trace'),
  ...rows(ANYTHING, 'tampering/agent tampering/control-plane tampering/environment tampering/files'),
  ...rows(ANYTHING, 'tampering/guard tampering/kill tampering/service forensics/history'),
  ...rows(['resources', ...NETWORK], 'resource/miner'),
  ...rows(['loopback'], 'network/loopback'),
  ...rows(READ, 'network/recording system/mounts'),
  ...rows(MACHINE, 'system/clock'),
  ...rows(['processes'], 'programs/terminal'),
  ...rows(['resources'], 'resource/fork-bomb resource/flood resource/endless'),
  ...rows(NONE, 'reading/files reading/checksums reading/binary reading/text reading/find reading/machine'),
  ...rows(
    NONE,
    'reading/shell reading/short-versions reading/versions git/look git/look-or-change git/stash-look',
  ),
}

const RULE_RISKS = { ...SHELL, ...RUNNING, ...REACHING, ...HOST }

const listed = <const List extends string>(
  ids: Words<List> extends keyof typeof RULE_RISKS ? List : never,
): readonly string[] => ids.split(' ')

/**
 * Rules that no sandbox makes unnecessary: protected names and code that runs from the workspace later, escapes and attacks
 * on the sandbox itself, bombs, and programs that act on the kernel, on disks or on how files are executed.
 */
const NEVER_CONTAINED: ReadonlySet<string> = new Set([
  ...listed('protect/name protect/soft persistence/workspace persistence/automation persistence/scripts'),
  ...listed('escape/process escape/device escape/raw-disk escape/container escape/container-daemon'),
  ...listed('escape/container-mount escape/pod escape/bus escape/trace code/catastrophe git/transport'),
  ...listed('tampering/agent tampering/control-plane tampering/environment tampering/files'),
  ...listed('tampering/guard tampering/kill tampering/service forensics/history'),
  ...listed('resource/fork-bomb resource/flood destructive/disk destructive/root shell/empty shell/nul'),
  ...listed('privilege/mount privilege/kernel privilege/namespaces privilege/boot privilege/power'),
  ...listed('privilege/capsh privilege/setuid privilege/owner'),
])

/** Rules whose id contains the program's name. */
type FamilyId = `${string}/option` | `${string}/program` | `privilege/${string}` | `wrappers/${string}`

/** The id of a built-in rule. */
export type RuleId = keyof typeof RULE_RISKS | FamilyId

const OPTION = [...CODE, 'network', 'publish'] as const

/** Whether a sandbox that contains all risks of the rule makes it unnecessary. */
export const isContainable = (rule: RuleId): boolean => !NEVER_CONTAINED.has(rule)

/** The risks of a built-in rule; absent for the id of an operator's rule. */
export function builtInRisks(rule: string): readonly Risk[] | undefined {
  const own = (RULE_RISKS as Readonly<Record<string, readonly Risk[]>>)[rule]
  if (own) return own
  if (rule.endsWith('/option')) return OPTION
  if (rule.endsWith('/program') || rule.startsWith('wrappers/')) return CODE
  return rule.startsWith('privilege/') ? MACHINE : undefined
}

/** The risks of a rule. An id of a family without its own row has the risks of the family. */
export const risksOf = (rule: RuleId): readonly Risk[] => builtInRisks(rule) ?? ANYTHING
