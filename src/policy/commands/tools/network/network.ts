import { addressFindings } from '../../address.ts'
import { applyOption, touch } from '../../effects.ts'
import { asked, boxed, denied, refused } from '../../finding.ts'
import { parseOptions } from '../../options.ts'
import { FROM_NETWORK, UNKNOWN } from '../../shell/scope.ts'
import { isOpen, isStatic } from '../../shell/unknown-text.ts'
import type { Handler } from '../../walk.ts'
import { names, tools } from '../tool.ts'

/** A DNS lookup sends the name, and any data in it, to a server. */
const lookup: Handler = (call) => {
  call.node.findings.push(asked('network/lookup', 'sends a DNS query'))
  const carried =
    ['files', 'secret', 'environment', 'identity', 'decoded'].some((source) =>
      call.walk.sources.has(source),
    ) || call.walk.nodes.some(({ findings }) => findings.some(({ rule }) => rule.startsWith('secrets/')))
  if (carried && call.args.some((arg) => isOpen(arg)))
    call.node.findings.push(denied('exfiltration/lookup', 'puts data into a DNS query'))
  return FROM_NETWORK
}

/** Raw connections: a shell on one end is a backdoor, piped data is exfiltration. */
const raw: Handler = (call) => {
  const text = call.args.join(' ')
  const shell = /(^|\s)-\w*[ec]\b|--(exec|sh-exec|lua-exec)|EXEC:|SYSTEM:|SHELL:/i.test(text)
  const listens = /(^|\s)-\w*l|--listen|LISTEN/i.test(text)
  if (call.args.every((arg) => /^-{1,2}(h|help|version|V)$/.test(arg))) return undefined
  call.node.findings.push(asked('network/raw', 'opens a raw connection'))
  if (shell || call.name === 'socat')
    call.node.findings.push(denied('network/reverse-shell', 'connects a program to the network'))
  if (listens) call.node.findings.push(denied('network/listen', 'listens for connections from outside'))
  if (call.stdin.piped)
    call.node.findings.push(denied('exfiltration/raw', 'sends data over a raw connection'))
  for (const path of call.args.filter((arg) => /(^|:)\//.test(arg)))
    touch(call, path.replace(/^[^/]*:/, ''), 'write')
  for (const host of call.args.filter((arg) => /[.:]/.test(arg) && isStatic(arg)))
    call.node.findings.push(
      ...addressFindings(call.walk, call.scope, host).filter(({ action }) => action === 'deny'),
    )
  return FROM_NETWORK
}

const mail: Handler = (call) => {
  call.node.findings.push(asked('network/mail', 'sends mail'))
  if (call.stdin.piped && (call.stdin.from.size > 0 || isOpen(call.stdin.text)))
    call.node.findings.push(denied('exfiltration/mail', 'sends data by mail'))
  const { options } = parseOptions(
    { short: 'sabcrAfqS', effects: { '-a': 'read', '-A': 'read', '-f': 'read' } },
    call.args,
  )
  for (const option of options) applyOption(call, option)
  return UNKNOWN
}

const tunnel: Handler = (call) => {
  if (call.args.some((arg) => /^-{0,2}(help|version)$/.test(arg))) return undefined
  call.node.findings.push(denied('network/tunnel', 'opens a tunnel from outside'))
  return UNKNOWN
}

const scanner: Handler = (call) => {
  const { options } = parseOptions(
    {
      short: 'wrzGCWFis',
      effects: { '-w': 'write', '-r': 'read', '-z': 'program', '-F': 'read', '--script': 'program' },
    },
    call.args,
  )
  for (const option of options) applyOption(call, option)
  const recorded = options.some(({ name }) => name === '-r') && !options.some(({ name }) => name === '-i')
  call.node.findings.push(
    recorded && /^(tcpdump|tshark)$/.test(call.name)
      ? boxed('network/recording', 'reads recorded traffic')
      : refused('network/scan', 'examines the network'),
  )
  return recorded ? UNKNOWN : FROM_NETWORK
}

const telnetLike: Handler = (call) => raw(call)

const openssl: Handler = (call) => {
  const [sub, ...rest] = call.args
  if (sub === 's_client' || sub === 's_server') return raw({ ...call, args: rest })
  const { options, operands } = parseOptions(
    {
      single: true,
      effects: {
        '-in': 'read',
        '-out': 'write',
        '-inkey': 'read',
        '-key': 'read',
        '-keyout': 'write',
        '-engine': 'program',
        '-config': 'read',
        '-provider': 'program',
        '-provider-path': 'read',
        '-pass': 'data',
        '-passin': 'data',
        '-passout': 'data',
        '-k': 'data',
        '-K': 'data',
        '-iv': 'data',
      },
    },
    rest,
  )
  for (const option of options) applyOption(call, option)
  if (sub === 'dgst') for (const path of operands) touch(call, path, 'read')
  return undefined
}

/** Programs that use the network, except web and SSH clients. */
export const NETWORK: Readonly<Record<string, Handler>> = {
  openssl,
  ...names(
    'dig nslookup host drill delv kdig resolvectl getent ping ping6 traceroute tracepath mtr whois',
    lookup,
  ),
  ...names('nc socat telnet cryptcat pwncat websocat', raw),
  ...names('ftp lftp tftp ncftp', telnetLike),
  ...names('mail mailx mutt sendmail msmtp swaks', mail),
  ...names(
    'ngrok cloudflared localtunnel lt bore frpc chisel pagekite serveo tailscale zerotier-cli inlets',
    tunnel,
  ),
  ...names('nmap masscan tcpdump tshark wireshark arp-scan zmap nikto sqlmap hydra aircrack-ng', scanner),
  ...tools({
    'redis-cli memcached mongosh mongo etcdctl consul nats influx cqlsh': {
      short: 'hpanuPdie',
      also: (call, { operands }) => {
        call.node.findings.push(asked('network/service', 'connects to a database or service'))
        if (operands.some((word) => /^(eval|config|module|slaveof|replicaof|script|debug)$/i.test(word)))
          call.node.findings.push(asked('network/service', 'can run code in the service'))
      },
    },
    'smbclient showmount rpcclient ldapsearch snmpwalk kinit': {
      also: ({ node }) => {
        node.findings.push(asked('network/service', 'connects to a network service'))
      },
    },
    'gpg gpg2': {
      effects: {
        '-o': 'write',
        '--output': 'write',
        '--export-secret-keys': 'deny: prints secret keys',
        '--export-secret-subkeys': 'deny: prints secret keys',
        '--import': 'ask: changes the key ring',
        '--delete-keys': 'ask: changes the key ring',
        '--delete-secret-keys': 'ask: changes the key ring',
        '--photo-viewer': 'program',
        '--homedir': 'read',
        '--gen-key': 'ask: makes a key',
        '--keyserver': 'ask: talks to a key server',
        '--send-keys': 'ask: publishes keys',
      },
      operands: 'read',
    },
    'rclone s3cmd gsutil mc restic borg duplicity': {
      also: (call, { operands }) => {
        call.node.findings.push(asked('network/copy', 'copies files to or from another machine'))
        for (const path of operands.slice(1)) if (!/^[\w-]+:/.test(path)) touch(call, path, 'tree')
      },
    },
    'croc wormhole magic-wormhole transfer onionshare': {
      operands: 'tree',
      also: ({ node }) => {
        node.findings.push(denied('exfiltration/share', 'uploads files to a public service'))
      },
    },
  }),
}
