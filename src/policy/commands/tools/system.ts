import { applyOption, runText, touch } from '../effects.ts'
import { asked, boxed, denied, refused } from '../finding.ts'
import { type OptionSpec, parseOptions } from '../options.ts'
import { pathFindings } from '../paths.ts'
import { UNKNOWN } from '../shell/scope.ts'
import { isOpen, isStatic } from '../shell/unknown-text.ts'
import { type Call, deeper, type Handler } from '../walk.ts'
import { tools } from './tool.ts'

const DOCKER_GLOBAL: OptionSpec = {
  short: 'Hlcf',
  long: 'host config context log-level tlscacert tlscert tlskey file project-name profile env-file',
  prefix: true,
}
const DOCKER_RUN: OptionSpec = {
  short: 'aceHhlmpuvw',
  long: 'add-host annotation cap-add cap-drop cgroup-parent cidfile cpus cpu-shares device dns entrypoint env env-file expose gpus health-cmd hostname ip ipc label link log-driver log-opt mac-address memory mount name network net pid platform publish pull restart runtime security-opt shm-size stop-signal sysctl tmpfs ulimit user userns uts volume volumes-from volume-driver workdir',
  prefix: true,
}
const GRANTS =
  /^--(privileged|cap-add|device|security-opt|pid|ipc|uts|userns|net|network|cgroupns|volumes-from|sysctl|runtime|cgroup-parent|device-cgroup-rule|gpus)$/
const GRANTING: Readonly<Record<string, RegExp>> = {
  '--pid': /host|container/,
  '--ipc': /host/,
  '--uts': /host/,
  '--userns': /host/,
  '--net': /^(host|container)/,
  '--network': /^(host|container)/,
  '--security-opt': /unconfined|disable|systempaths/,
  '--cgroupns': /host/,
  '--gpus': /^$/,
}

/** docker, podman, nerdctl: the decision depends on the access that the container gets. */
const docker: Handler = (call) => {
  const { options, operands } = parseOptions(DOCKER_GLOBAL, call.args)
  if (options.some(({ name }) => name === '-H' || name === '--host' || name === '--context'))
    call.node.findings.push(denied('escape/container-daemon', 'connects to a container daemon directly'))
  if (/^(--version|-v|--help)$/.test(call.args.join(' '))) return UNKNOWN
  const words = operands[0] === 'container' || operands[0] === 'image' ? operands.slice(1) : operands
  const [sub = '', ...rest] = words
  call.node.canonical = [call.name, ...operands]
  if (sub === 'run' || sub === 'create') return dockerRun(call, rest)
  if (sub === 'exec') return dockerExec(call, rest)
  if (sub === 'push') pushes(call, rest)
  else if (/^(prune|rm|rmi|kill|stop)$/.test(sub) || rest[0] === 'prune' || rest[0] === 'rm')
    call.node.findings.push(asked('containers/remove', 'removes or stops containers, images or volumes'))
  else if (sub === 'cp')
    for (const path of rest.filter((word) => !/^[\w.-]+:/.test(word))) touch(call, path, 'write')
  else if (sub === 'login' || sub === 'logout')
    call.node.findings.push(asked('containers/account', 'uses the registry account'))
  else if (sub === 'plugin' || sub === 'swarm' || sub === 'context')
    call.node.findings.push(refused('containers/settings', 'changes the container daemon'))
  else if (!/^(ps|images|logs|inspect|version|info|stats|top|port|diff|history|search|events)$/.test(sub))
    call.node.findings.push(asked('containers/daemon', 'works with the container daemon'))
  return UNKNOWN
}

function pushes(call: Call, rest: readonly string[]): void {
  const image = rest.find((word) => word[0] !== '-') ?? ''
  const host = /^([^/]+\.[^/]+|localhost)(:\d+)?\//.exec(image)?.[1]
  const known =
    host === undefined ||
    /(^|\.)(docker\.io|ghcr\.io|quay\.io|gcr\.io|pkg\.dev|azurecr\.io|amazonaws\.com|gitlab\.com|localhost|public\.ecr\.aws)$/.test(
      host,
    )
  call.node.findings.push(
    known
      ? asked('containers/push', 'publishes an image')
      : refused('exfiltration/image', `publishes an image to \`${host}\``),
  )
}

function dockerRun(call: Call, args: readonly string[]) {
  const { options, operands } = parseOptions(DOCKER_RUN, args)
  call.node.findings.push(asked('containers/run', 'starts a container outside the sandbox'))
  for (const { name, value = '' } of options) {
    if (GRANTS.test(name) && (GRANTING[name]?.test(value) ?? true))
      call.node.findings.push(
        denied('escape/container', `\`${name}\` gives a container rights over this machine`),
      )
    if (name === '-v' || name === '--volume') mounts(call, value.split(':')[0] ?? '')
    if (name === '--mount') mounts(call, /(?:^|,)(?:source|src)=([^,]*)/.exec(value)?.[1] ?? '')
    if (name === '--env-file') touch(call, value, 'read')
  }
  const [, ...command] = operands
  if (command.length > 0) deeper(call.walk, () => call.walk.run(call.scope, command, call.stdin))
  return UNKNOWN
}

/** A host directory mounted into a container counts as written. */
function mounts(call: Call, source: string): void {
  if (!/^[./~\uFDD0-\uFDEF]/.test(source)) return
  const found = pathFindings(call.walk, call.scope, source, 'write')
  call.node.findings.push(...found)
  if (found.some(({ action }) => action === 'deny') || /docker\.sock|containerd/.test(source))
    call.node.findings.push(denied('escape/container-mount', `gives \`${source}\` to a container`))
}

function dockerExec(call: Call, args: readonly string[]) {
  const { operands } = parseOptions(
    { short: 'euw', long: 'env user workdir env-file detach-keys', prefix: true },
    args,
  )
  call.node.findings.push(asked('containers/exec', 'runs a command in a container'))
  if (operands.length > 1) deeper(call.walk, () => call.walk.run(call.scope, operands.slice(1), call.stdin))
  return UNKNOWN
}

/** kubectl, oc, k9s. */
const kubectl: Handler = (call) => {
  const { options, operands } = parseOptions(
    {
      short: 'nflocL',
      long: 'namespace context kubeconfig cluster user output filename selector container image overrides token server as',
      effects: { '--kubeconfig': 'read', '-f': 'data' },
    },
    call.args,
  )
  for (const option of options) applyOption(call, option)
  const [sub = '', kind = ''] = operands
  if (sub === 'version' && call.args.includes('--client')) return UNKNOWN
  call.node.canonical = [call.name, ...operands]
  if (/secret/.test(kind) && /^(get|describe|edit)$/.test(sub))
    call.node.findings.push(denied('secrets/cluster', 'prints secrets of the cluster'))
  const text = call.args.join(' ')
  if (/hostPID|hostNetwork|hostIPC|hostPath|privileged|nsenter/.test(text))
    call.node.findings.push(denied('escape/pod', 'starts a privileged pod'))
  if (sub === 'exec' || sub === 'debug') {
    const dashes = call.args.indexOf('--')
    if (dashes !== -1)
      deeper(call.walk, () => call.walk.run(call.scope, call.args.slice(dashes + 1), call.stdin))
  }
  call.node.findings.push(asked('cluster/change', 'works on a cluster'))
  return UNKNOWN
}

const GUARD =
  /ringfence|sandbox|sandforge|auditd|audit|falco|supervisor|codex|claude|osquery|crowdstrike|watchdog|systemd|init\b|sshd/i

/** A number that is known only at run time: `$!`, `$(cat dev.pid)`. In a sandbox it is one of its own processes. */
const isOwnJob = ({ walk }: Call, target: string): boolean => isOpen(target) && !walk.sources.has('$PPID')

const kill: Handler = (call) => {
  const { walk, node, args } = call
  const targets = args.filter(
    (arg, index) => arg[0] !== '-' && !/^-(s|n|-signal)$/.test(args[index - 1] ?? ''),
  )
  const looked = walk.nodes.some(
    ({ program, argv }) =>
      /^(pgrep|pidof|ps|lsof|fuser|grep)$/.test(program ?? '') && GUARD.test(argv.join(' ')),
  )
  if (looked) node.findings.push(denied('tampering/kill', 'kills the supervisor of this session'))
  if (call.name === 'kill') {
    const all =
      args.some((arg, index) => (arg === '-1' && index > 0) || arg === '0') ||
      targets.includes('1') ||
      (args.length === 1 && args[0] === '-1')
    if (all) node.findings.push(denied('tampering/kill', 'kills every process'))
    const own = targets.every((target) => /^%/.test(target) || isOwnJob(call, target))
    node.findings.push(
      own ? boxed('processes/kill', 'ends a job') : asked('processes/kill', 'kills or stops processes'),
    )
  } else {
    const plain = targets.length === 1 && /^[\w./-]{3,}( [\w./-]+)*$/.test(targets[0] as string)
    node.findings.push(
      plain
        ? boxed('processes/kill', 'kills processes of the sandbox by name')
        : asked('processes/kill', 'kills processes by name'),
    )
    if (
      targets.some((target) => isStatic(target) && GUARD.test(target)) ||
      args.some((arg) => arg === '-u' || arg === '-1')
    )
      node.findings.push(denied('tampering/kill', 'kills the supervisor of this session'))
  }
  return UNKNOWN
}

const READS = /^(status|show|list-\w+|is-\w+|cat|get-default|help|version|list|--version)$/

const systemctl: Handler = (call) => {
  const words = call.args.filter((arg) => arg[0] !== '-')
  // `service NAME ACTION` has the reverse order.
  const sub = (/service$/.test(call.name) ? words[1] : words[0]) ?? 'status'
  if (words.some((word) => GUARD.test(word)) && !READS.test(sub))
    call.node.findings.push(denied('tampering/service', 'stops a security service of this machine'))
  if (READS.test(sub)) return undefined
  const keeps =
    /^(enable|disable|link|edit|preset|mask|reenable|set-\w+|import-environment|daemon-reexec|isolate|poweroff|reboot|halt|kexec|suspend|hibernate|rescue|emergency|default|exit|switch-root|load|bootstrap|submit|start|stop|kill)$/
  const user = call.args.includes('--user')
  if (keeps.test(sub) && !(user && /^(start|stop)$/.test(sub)))
    call.node.findings.push(denied('persistence/service', 'changes services of the machine or of the user'))
  else call.node.findings.push(asked('system/service', 'changes a running service'))
  return UNKNOWN
}

const crontab: Handler = (call) => {
  if (call.args.includes('-l')) call.node.findings.push(boxed('system/crontab', 'lists scheduled commands'))
  else call.node.findings.push(denied('persistence/schedule', 'runs commands later, outside this session'))
  if (isStatic(call.stdin.text) && call.stdin.piped)
    runText(call, call.stdin.text.replace(/^([\d*/,-]+\s+){5}/gm, ''))
  return UNKNOWN
}

/** Other agents and security tools on this machine that are told to run without their sandbox. */
const agent: Handler = (call) => {
  const text = call.args.join(' ')
  call.node.findings.push(asked('agents/start', 'starts another agent'))
  if (
    /dangerously|danger-full-access|bypass|--yolo|skip-permissions|--no-sandbox|approval-mode[= ]yolo|full-auto|--auto-approve|--yes-always|--yes\b|never\b/.test(
      text,
    )
  )
    call.node.findings.push(denied('tampering/agent', 'starts an agent without its sandbox'))
  return UNKNOWN
}

const guard: Handler = (call) => {
  const [sub = ''] = call.args.filter((arg) => arg[0] !== '-')
  if (/^(doctor|version|help|status|ls|list|check|get)?$/.test(sub)) return undefined
  call.node.findings.push(denied('tampering/guard', 'changes the sandbox itself'))
  return UNKNOWN
}

const CREDENTIALS: Readonly<Record<string, RegExp>> = {
  security: /find-\S*password|dump-keychain|export|find-(certificate|identity)/,
  gcloud:
    /print-(access|identity)-token|secrets versions access|auth (application-default )?print|iam service-accounts keys create/,
  aws: /configure get|sts get-session-token|secretsmanager get|ssm get-parameter|ecr get-login|configure export-credentials|kms decrypt|iam create-access-key/,
  az: /get-access-token|keyvault secret|ad sp create|acr login/,
  gh: /auth (token|status -t|status --show-token)|secret (list|set)/,
  glab: /auth (status -t|token)/,
  vault: /^(read|kv get|token|unwrap|login|print)/,
  pass: /^(show|ls|find|grep|otp)?/,
  op: /^(read|item get|document get|inject|signin)/,
  bw: /^(get|list|export|unlock)/,
  'secret-tool': /lookup|search/,
  keyring: /get/,
  heroku: /auth:token|config/,
  doctl: /auth/,
  fly: /auth token|secrets/,
  'op-cli': /read/,
  chezmoi: /secret|data/,
  sops: /-d|--decrypt|decrypt|exec/,
  age: /-d|--decrypt/,
  ansible_vault: /decrypt|view/,
  'docker-credential-helper': /get/,
}

const credentials =
  (pattern: RegExp): Handler =>
  (call) => {
    const words = call.args
      .filter((arg) => arg[0] !== '-' || /^-(d|t|-decrypt|-show-token)$/.test(arg))
      .join(' ')
    if (pattern.test(words))
      call.node.findings.push(denied('secrets/command', 'prints or passes on credentials'))
    else if (!/^(version|help|--version)?$/.test(words))
      call.node.findings.push(asked('cloud/account', 'uses a remote account'))
    const dashes = call.args.indexOf('--')
    if (dashes !== -1 && dashes + 1 < call.args.length)
      deeper(call.walk, () => call.walk.run(call.scope, call.args.slice(dashes + 1), call.stdin))
    if (UPLOADS.test(`${call.name} ${words}`)) publishes(call)
    return UNKNOWN
  }

/** Commands of cloud tools whose operands are files to upload. */
const UPLOADS =
  /^(gh (gist (create|edit)|release (create|upload))|aws s3 (cp|mv|sync)|aws s3api put-object|gcloud storage (cp|mv|rsync)|az storage (blob|file) upload|doctl|gsutil (cp|mv|rsync))/

function publishes(call: Call): void {
  for (const path of call.args.slice(1).filter((arg) => arg[0] !== '-' && !/^\w+:\/\//.test(arg))) {
    if (touch(call, path, 'read').some(({ rule }) => rule.startsWith('secrets')))
      call.node.findings.push(denied('exfiltration/publish', 'publishes credentials'))
  }
  if (call.stdin.piped && call.stdin.from.has('secret'))
    call.node.findings.push(denied('exfiltration/publish', 'publishes credentials'))
}

/** Programs that act on the machine, on other machines or on security tools. */
export const SYSTEM: Readonly<Record<string, Handler>> = {
  docker,
  podman: docker,
  nerdctl: docker,
  'docker-compose': (call) => {
    call.node.findings.push(asked('containers/compose', 'starts or changes containers'))
    return UNKNOWN
  },
  kubectl,
  oc: kubectl,
  kill,
  pkill: kill,
  killall: kill,
  skill: kill,
  systemctl,
  launchctl: systemctl,
  service: systemctl,
  'rc-service': systemctl,
  initctl: systemctl,
  crontab,
  ...Object.fromEntries(
    'codex claude gemini aider cursor-agent goose amp opencode qwen'.split(' ').map((name) => [name, agent]),
  ),
  ...Object.fromEntries(
    'ringfence sandboxctl sandforge sandboxd srt'.split(' ').map((name) => [name, guard]),
  ),
  ...Object.fromEntries(Object.entries(CREDENTIALS).map(([name, pattern]) => [name, credentials(pattern)])),
  ...tools({
    'logger wall write mesg': {
      also: ({ node }) => {
        node.findings.push(asked('system/message', 'writes to other users or to the log'))
      },
    },
    'journalctl dmesg': {
      effects: {
        '--vacuum-time': 'deny: removes records',
        '--vacuum-size': 'deny: removes records',
        '--rotate': 'deny: removes records',
        '-c': 'deny: removes records',
        '-C': 'deny: removes records',
        '--clear': 'deny: removes records',
        '--flush': 'ask: moves records',
      },
      also: ({ node }) => {
        node.findings.push(boxed('system/log', 'reads the log of the machine'))
      },
    },
    'apt apt-get yum dnf apk pacman zypper brew snap flatpak port dpkg rpm aptitude': {
      short: 'otc',
      effects: { '-o': 'ask: settings that can start programs' },
      also: ({ node, args }) => {
        const words = args.filter((arg) => arg[0] !== '-')
        if (
          !/^(list|show|search|info|policy|--version|config|deps|leaves|outdated|doctor|home|which|files)$/.test(
            words[0] ?? '--version',
          ) &&
          !/^-(l|L|s|S|Q\w*|q\w*)$/.test(args[0] ?? '')
        )
          node.findings.push(asked('system/packages', 'installs or removes system packages'))
      },
    },
    'update-alternatives ldconfig update-rc.d': {
      also: ({ node }) => {
        node.findings.push(denied('system/settings', 'changes the settings of the machine'))
      },
    },
    'defaults plutil PlistBuddy': {
      also: ({ node, args }) => {
        if (args[0] !== 'read')
          node.findings.push(asked('system/settings', 'changes the settings of the user'))
      },
    },
    'screencapture pbpaste xclip xsel wl-paste import scrot': {
      also: ({ node }) => {
        node.findings.push(asked('privacy/screen', 'reads the screen or the clipboard'))
      },
    },
  }),
}
