import { randomBytes } from 'node:crypto'
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { WebSocket } from 'ws'
import type { RemoteSandbox } from '../../client/sandbox.ts'
import { environment, stateDirectory } from '../../compose/compose.ts'
import { run } from '../../host/process/run.ts'
import { runInForeground } from '../../host/process/spawn.ts'
import { SandboxError } from '../../model/errors.ts'
import { shellQuote } from '../../model/text/shell-quote.ts'
import { visible } from '../../model/text/visible.ts'
import { usage } from '../options/options.ts'
import { address } from '../server/remote.ts'
import { out, passBytes } from '../terminal/output.ts'

/**
 * `ringfence sandbox ssh`: OpenSSH to `sshd -i` inside a sandbox. The far end is hostile: the configuration that we write pins
 * the host key, and offers no agent, no display, no local command and no other key.
 */

/** SECURITY: the id becomes a word of ssh's command line and of a configuration, so nothing else is accepted. */
function checkedId(id: string | undefined): string {
  if (id === undefined) throw usage('sandbox', 'missing sandbox id')
  if (/^sb_[0-9a-f]{1,64}$/.test(id)) return id
  throw usage('sandbox', `\`${visible(id).slice(0, 64)}\` is not a sandbox id`)
}

/** `sandbox ssh ID [command…]`; with `--print`: writes the files and prints the name of the configuration, for `ssh -F`. */
export async function ssh(
  sandbox: RemoteSandbox,
  print: boolean,
  command: readonly string[],
): Promise<number> {
  const id = checkedId(sandbox.id)
  const kept = join(stateDirectory(environment()), 'ssh')
  if (print) mkdirSync(kept, { recursive: true, mode: 0o700 })
  const dir = mkdtempSync(join(print ? kept : tmpdir(), `${print ? id : 'ringfence-ssh'}-`))
  const config = join(dir, 'config')
  try {
    await prepare(sandbox, id, dir)
  } catch (error) {
    rmSync(dir, { recursive: true, force: true })
    throw error
  }
  if (print) {
    out(`${config}\n`)
    return 0
  }
  try {
    return await runInForeground('ssh', ['-F', config, id, ...command], environment())
  } finally {
    rmSync(dir, { recursive: true, force: true })
  }
}

/** Keys for this session, on both sides, and the configuration of both. */
async function prepare(sandbox: RemoteSandbox, id: string, dir: string): Promise<void> {
  const session = randomBytes(16).toString('hex')
  const inside = `/tmp/.ringfence-ssh-${session}`
  const user = await userOf(sandbox)
  for (const name of ['client_key', 'host_key']) await makeKey(join(dir, name))
  const text = (name: string): string => readFileSync(join(dir, name), 'utf8')
  const env = await sandbox.exec(['env', '-0'])
  await sandbox.files.write(`${inside}/host_key`, Buffer.from(text('host_key')))
  await sandbox.files.write(
    `${inside}/authorized_keys`,
    Buffer.from(`restrict,pty,port-forwarding ${text('client_key.pub')}`),
  )
  await sandbox.files.write(`${inside}/sshd_config`, Buffer.from(sshdConfig(inside, env.stdout)))
  await sandbox.exec(['chmod', '600', `${inside}/host_key`])
  const [type, key] = text('host_key.pub').split(' ')
  writeFileSync(join(dir, 'known_hosts'), `${id} ${type} ${key}\n`, { mode: 0o600 })
  rmSync(join(dir, 'host_key'))
  writeFileSync(join(dir, 'config'), clientConfig(id, user, dir, session), { mode: 0o600 })
}

async function makeKey(file: string): Promise<void> {
  const args = ['-q', '-t', 'ed25519', '-N', '', '-C', '', '-f', file]
  const env = { PATH: environment().PATH ?? '/usr/bin:/bin' }
  const { exit, stderr } = await run({ file: 'ssh-keygen', args, env, control: false }, { wallMs: 60_000 })
  if (exit.code !== 0)
    throw new SandboxError(
      'launch-failed',
      `ssh-keygen failed: ${visible(Buffer.from(stderr).toString()).slice(0, 200)}`,
      {
        hint: 'install openssh-client',
      },
    )
}

/** PLATFORM: sshd of a user 0 without capabilities cannot start, because it insists on chroot. */
async function userOf(sandbox: RemoteSandbox): Promise<string> {
  const { stdout } = await sandbox.exec('id -u; id -un; test -x /usr/sbin/sshd && echo has-sshd')
  const [uid = '', name = '', has] = stdout.trim().split('\n')
  if (uid === '0')
    throw new SandboxError(
      'unsupported',
      'commands of this sandbox run as user 0 without rights, where sshd cannot run',
      {
        hint: 'create the sandbox with a writable root (`--template base`), or run the server as an ordinary user',
      },
    )
  if (has !== 'has-sshd')
    throw new SandboxError('unsupported', 'there is no /usr/sbin/sshd in this sandbox', {
      hint: 'install openssh-server in its image, or on the server if sandboxes use its programs',
    })
  if (!/^[a-z_][a-z0-9_-]{0,31}$/.test(name))
    throw new SandboxError('unsupported', 'the user of this sandbox has no name that ssh can use')
  return name
}

/** sshd forgets the environment of the sandbox (proxies, certificates), so it is set again. */
function sshdConfig(dir: string, env: string): string {
  const set = env
    .split('\0')
    .filter(
      (line) =>
        /^[A-Za-z_][A-Za-z0-9_]*=[^"\\\n\r]*$/.test(line) &&
        !/^(PWD|OLDPWD|SHLVL|_|TERM|HOME|USER|SHELL|LOGNAME)=/.test(line),
    )
    .map((line) => `"${line}"`)
  return [
    `HostKey ${dir}/host_key`,
    `AuthorizedKeysFile ${dir}/authorized_keys`,
    'PidFile none',
    'StrictModes no',
    'UsePAM no',
    'PasswordAuthentication no',
    'KbdInteractiveAuthentication no',
    'AllowAgentForwarding no',
    'AllowStreamLocalForwarding no',
    'AllowTcpForwarding local',
    'X11Forwarding no',
    'GatewayPorts no',
    'PermitTunnel no',
    'PermitUserRC no',
    'PrintMotd no',
    'Subsystem sftp internal-sftp',
    'LogLevel ERROR',
    ...(set.length === 0 ? [] : [`SetEnv ${set.join(' ')}`]),
    '',
  ].join('\n')
}

/** The client's side of the connection. */
function clientConfig(id: string, user: string, dir: string, session: string): string {
  const own = [process.execPath, process.argv[1] ?? 'ringfence', 'sandbox', 'ssh-proxy', id, session]
  return [
    `Host ${id}`,
    `  ProxyCommand ${own.map(proxyWord).join(' ')}`,
    `  User ${user}`,
    `  IdentityFile "${dir}/client_key"`,
    `  UserKnownHostsFile "${dir}/known_hosts"`,
    `  HostKeyAlias ${id}`,
    ...CLIENT_LINES.map((line) => `  ${line}`),
    '',
  ].join('\n')
}

const CLIENT_LINES = [
  'GlobalKnownHostsFile none',
  'StrictHostKeyChecking yes',
  'HostKeyAlgorithms ssh-ed25519',
  'CheckHostIP no',
  'UpdateHostKeys no',
  'VerifyHostKeyDNS no',
  'IdentitiesOnly yes',
  'IdentityAgent none',
  'AddKeysToAgent no',
  'PreferredAuthentications publickey',
  'PubkeyAuthentication yes',
  'PasswordAuthentication no',
  'KbdInteractiveAuthentication no',
  'HostbasedAuthentication no',
  'GSSAPIAuthentication no',
  'ForwardAgent no',
  'ForwardX11 no',
  'ForwardX11Trusted no',
  'Tunnel no',
  'PermitRemoteOpen none',
  'PermitLocalCommand no',
  'EnableEscapeCommandline no',
  'ControlMaster no',
  'ControlPath none',
  'SendEnv -*',
  'LogLevel ERROR',
]

/** SECURITY: a shell reads the ProxyCommand, after ssh has replaced what begins with `%`. */
const proxyWord = (word: string): string => shellQuote(word).replaceAll('%', '%%')

/** `sandbox ssh-proxy ID SESSION`: joins standard input and output with sshd in the sandbox, for ssh's ProxyCommand. */
export async function sshProxy([given, session = '']: readonly string[]): Promise<number> {
  const id = checkedId(given)
  if (!/^[0-9a-f]{32}$/.test(session))
    throw usage('sandbox', 'ssh-proxy is for the configuration that `sandbox ssh` writes')
  const { url: base, apiKey } = address()
  const url = `${base.replace(/^http/, 'ws')}/v1/sandboxes/${id}/ssh?session=${session}`
  const socket = new WebSocket(url, {
    headers: { authorization: `Bearer ${apiKey}` },
  })
  const ended = new Promise<number>((resolve, reject) => {
    socket.on('close', (code) => resolve(code === 1000 ? 0 : 1))
    socket.on('unexpected-response', (_, response) => reject(refused(response.statusCode ?? 0)))
    socket.on('error', (cause) =>
      reject(new SandboxError('unreachable', 'no connection to the server', { cause })),
    )
  })
  socket.on('message', (data, isBinary) => {
    // Slow readers hold the connection, not our memory.
    const full = isBinary ? passBytes('stdout', data as Buffer) : undefined
    if (!full) return
    socket.pause()
    void full.then(() => socket.resume())
  })
  await Promise.race([new Promise((resolve) => socket.once('open', resolve)), ended])
  void send(socket)
  try {
    return await ended
  } finally {
    // Otherwise an open input would keep the process, and ssh with it.
    process.stdin.destroy()
  }
}

async function send(socket: WebSocket): Promise<void> {
  for await (const chunk of process.stdin)
    await new Promise<void>((resolve) => socket.send(chunk as Buffer, { binary: true }, () => resolve()))
  socket.close(1000)
}

const refused = (status: number): SandboxError =>
  status === 403 || status === 422
    ? new SandboxError('interactive-disabled', 'the server does not allow interactive sessions to this key', {
        hint: 'an operator can set `[policy] allow_interactive = true`',
      })
    : new SandboxError('unreachable', `the server refused the connection (${status})`)
