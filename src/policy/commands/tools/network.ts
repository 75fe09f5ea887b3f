import { addressFindings, hostOf, isLocalHost } from '../address.ts'
import { applyOption, touch } from '../effects.ts'
import { SECRET_VARIABLE } from '../environment.ts'
import { asked, denied, refused, unseen } from '../finding.ts'
import { ANY, isOpen, isStatic, show } from '../marks.ts'
import { type Option, type OptionSpec, parseOptions } from '../options.ts'
import { absolute } from '../paths.ts'
import { textStream, UNKNOWN } from '../scope.ts'
import type { Call, Handler } from '../walk.ts'
import { names, tools } from './tool.ts'

const CURL: OptionSpec = {
  short: 'AbcCdDeEFhHKmoPQrtTuUwxXyYz',
  long: 'user-agent cookie cookie-jar continue-at data data-ascii data-binary data-raw data-urlencode json dump-header referer cert form form-string header config max-time output ftp-port quote range telnet-option upload-file user proxy-user write-out proxy request speed-time speed-limit time-cond url connect-timeout retry retry-delay retry-max-time max-redirs resolve connect-to unix-socket abstract-unix-socket interface local-port socks4 socks4a socks5 socks5-hostname preproxy proxy-header cacert capath key engine output-dir stderr trace trace-ascii libcurl netrc-file limit-rate proto doh-url dns-servers mail-from mail-rcpt variable etag-save etag-compare hsts alt-svc create-file-mode expect100-timeout happy-eyeballs-timeout-ms keepalive-time max-filesize noproxy oauth2-bearer pinnedpubkey service-name tls-max ciphers url-query aws-sigv4',
  effects: {
    '-o': 'data',
    '--output': 'data',
    '-c': 'write',
    '--cookie-jar': 'write',
    '-D': 'write',
    '--dump-header': 'write',
    '--trace': 'write',
    '--trace-ascii': 'write',
    '--libcurl': 'write',
    '--stderr': 'write',
    '--output-dir': 'write',
    '--etag-save': 'write',
    '--hsts': 'write',
    '--alt-svc': 'write',
    '-K': 'read',
    '--config': 'read',
    '--netrc-file': 'read',
    '-E': 'read',
    '--cert': 'read',
    '--key': 'read',
    '--cacert': 'read',
    '-b': 'upload',
    '-n': 'ask: uses stored credentials',
    '--netrc': 'ask: uses stored credentials',
    '-x': 'ask: sends traffic through another host',
    '--proxy': 'ask: sends traffic through another host',
    '--preproxy': 'ask: sends traffic through another host',
    '--socks5': 'ask: sends traffic through another host',
    '--socks5-hostname': 'ask: sends traffic through another host',
    '--socks4': 'ask: sends traffic through another host',
    '--socks4a': 'ask: sends traffic through another host',
    '--unix-socket': 'data',
    '--abstract-unix-socket': 'data',
    '--resolve': 'data',
    '--connect-to': 'data',
    '--url': 'url',
    '-k': 'ask: skips certificate checks',
    '--insecure': 'ask: skips certificate checks',
  },
}
const CURL_SENDS =
  /^(-d|--data(-ascii|-binary|-raw|-urlencode)?|--json|-F|--form(-string)?|-T|--upload-file|--url-query)$/

/** What is sent along: files are uploads, and so are the contents of secret variables. */
function judgeSent(call: Call, option: Option): void {
  const value = option.value ?? ''
  const file =
    option.name === '-T' || option.name === '--upload-file' ? value : /[@<]([^;,]*)/.exec(value)?.[1]
  const plain = option.name === '--data-raw' || option.name === '--form-string'
  if (
    file !== undefined &&
    !plain &&
    (value[0] === '@' ||
      /=[@<]|^[^=]*@/.test(value) ||
      option.name[1] === 'T' ||
      option.name === '--upload-file')
  )
    sendFile(call, file)
}

function sendFile(call: Call, file: string): void {
  if (file === '-' || file === '.') {
    if (call.stdin.piped && (call.stdin.from.size > 0 || isOpen(call.stdin.text)))
      call.node.findings.push(
        denied('exfiltration/upload', 'sends the output of other commands to the network'),
      )
    return
  }
  const found = touch(call, file, 'read')
  if (found.some(({ rule }) => /^(secrets|paths\/system-read)/.test(rule)))
    call.node.findings.push(denied('exfiltration/upload', `sends \`${show(file)}\` to the network`))
  else call.node.findings.push(asked('network/upload', `sends \`${show(file)}\` to the network`))
}

/** Secret variables and outputs of other commands inside the arguments of a network program. */
export function judgeLeaks(call: Call, inHeadersOnly: boolean): void {
  const secret = [...call.walk.sources].find(
    (source) => source[0] === '$' && SECRET_VARIABLE.test(source.slice(1)),
  )
  if (secret !== undefined)
    call.node.findings.push(
      inHeadersOnly
        ? asked('secrets/variable', `sends \`${secret}\``)
        : denied('exfiltration/variable', `sends \`${secret}\` to the network`),
    )
  const leaks = ['secret', 'files', 'environment', 'identity'].filter((source) =>
    call.walk.sources.has(source),
  )
  if (leaks.length > 0)
    call.node.findings.push(
      denied('exfiltration/output', 'sends the output of other commands to the network'),
    )
}

const curl: Handler = (call) => {
  const { options, operands } = parseOptions(CURL, call.args)
  for (const option of options) {
    if (CURL_SENDS.test(option.name)) judgeSent(call, option)
    else if (/^(-x|--proxy|--preproxy|--socks.*)$/.test(option.name))
      call.node.findings.push(asked('network/proxy', 'sends traffic through another host'))
    else applyOption(call, option)
    if (/unix-socket$/.test(option.name)) socket(call, option.value ?? '')
    if (option.name === '--resolve' || option.name === '--connect-to') pinned(call, option.value ?? '')
  }
  const headerArgs = options.every(
    ({ name, value }) => /^(-H|--header|-u|--user|--oauth2-bearer)$/.test(name) || isStatic(value ?? ''),
  )
  judgeLeaks(call, headerArgs && operands.every(isStatic))
  const urls = [
    ...operands,
    ...options.filter(({ name }) => name === '--url').map(({ value }) => value ?? ''),
  ]
  judgeUrls(call, urls, options.some(isMutation))
  saved(call, options, urls)
  return textStream(ANY, ['network'])
}

const isMutation = ({ name, value }: Option): boolean =>
  CURL_SENDS.test(name) ||
  (/^(-X|--request|--method)$/.test(name) && !/^(GET|HEAD|OPTIONS)$/i.test(value ?? ''))

function socket(call: Call, path: string): void {
  call.node.findings.push(asked('network/socket', 'talks to a local service through a socket'))
  touch(call, path, 'write')
}

function pinned(call: Call, value: string): void {
  for (const part of value.split(':').slice(2))
    call.node.findings.push(...addressFindings(call.walk, call.scope, part.replace(/[[\]+]/g, '')))
}

const CONTROL_PATH = /\/(v1\/)?(policy|policies|approvals?|sandbox(es)?|audit|rules|keys)\b/i

function judgeUrls(call: Call, urls: readonly string[], mutates: boolean): void {
  call.node.findings.push(asked('network/request', 'talks to the network'))
  for (const url of urls) {
    call.node.findings.push(...addressFindings(call.walk, call.scope, url))
    const host = isStatic(url) ? hostOf(url) : undefined
    if (host !== undefined && isLocalHost(host) && mutates && CONTROL_PATH.test(url))
      call.node.findings.push(
        denied('tampering/control-plane', 'changes the sandbox through its own interface'),
      )
  }
}

/** Notes where a download lands, so that running it later in the line is seen. */
function saved(call: Call, options: readonly Option[], urls: readonly string[]): void {
  const names = options
    .filter(
      ({ name }) => name === '-o' || name === '--output' || name === '-O' || name === '--output-document',
    )
    .map(({ value }) => value)
  const own = options.some(
    ({ name }) => name === '-O' || name === '--remote-name' || name === '--remote-name-all' || name === '-J',
  )
  const files = [
    ...names.filter((name) => name !== undefined),
    ...(own || call.name === 'wget'
      ? urls.map(
          (url) =>
            url
              .replace(/[?#].*$/, '')
              .split('/')
              .at(-1) ?? '',
        )
      : []),
  ]
  for (const file of files) downloaded(call, file)
}

/** Notes a file whose content came from the network. */
function downloaded(call: Call, file: string): void {
  if (file === '' || file === '-') return
  touch(call, file, 'write')
  const path = absolute(file, call.scope.cwds[0] ?? ANY)
  call.scope.files.set(path, { kind: 'content', stream: textStream(ANY, ['network']) })
}

const WGET: OptionSpec = {
  short: 'aeoOPiBtTwQUlARDIXS',
  long: 'execute output-file append-output input-file output-document directory-prefix base tries timeout wait quota user-agent level accept reject domains header post-data post-file body-data body-file method user password http-user http-password load-cookies save-cookies ca-certificate certificate private-key referer bind-address config limit-rate',
  effects: {
    '-e': 'ask: gives wget other settings',
    '--execute': 'ask: gives wget other settings',
    '--use-askpass': 'program',
    '-o': 'write',
    '--output-file': 'write',
    '-a': 'write',
    '--append-output': 'write',
    '-P': 'write',
    '--directory-prefix': 'write',
    '-i': 'read',
    '--input-file': 'read',
    '--save-cookies': 'write',
    '--load-cookies': 'read',
    '--config': 'read',
    '--warc-file': 'write',
    '--rejected-log': 'write',
    '--no-check-certificate': 'ask: skips certificate checks',
    '--hsts-file': 'write',
  },
}

const wget: Handler = (call) => {
  const { options, operands } = parseOptions(WGET, call.args)
  for (const option of options) {
    if (/^--(post|body)-file$/.test(option.name)) sendFile(call, option.value ?? '')
    else applyOption(call, option)
  }
  judgeLeaks(
    call,
    operands.every(isStatic) &&
      options.every(({ name, value }) => name === '--header' || isStatic(value ?? '')),
  )
  judgeUrls(
    call,
    operands,
    options.some(({ name }) => /^--(post|body|method)/.test(name)),
  )
  const document = options.findLast(({ name }) => name === '-O' || name === '--output-document')?.value
  if (document !== '-' && document !== '/dev/stdout')
    saved(
      call,
      options.map((option) =>
        option.name === '--output-document'
          ? { ...option, name: '-o' }
          : option.name === '-O'
            ? { ...option, name: '--output' }
            : { ...option, name: '' },
      ),
      document === undefined ? operands : [],
    )
  return textStream(ANY, ['network'])
}

/** Name look-ups carry whatever the name holds. */
const lookup: Handler = (call) => {
  call.node.findings.push(asked('network/lookup', 'asks a name server'))
  if (call.args.some((arg) => isOpen(arg)))
    call.node.findings.push(denied('exfiltration/lookup', 'puts data into a name look-up'))
  return textStream(ANY, ['network'])
}

/** Raw connections: a shell on one end is a way in, piped data a way out. */
const raw: Handler = (call) => {
  const text = call.args.join(' ')
  const shell = /(^|\s)-\w*[ec]\b|--(exec|sh-exec|lua-exec)|EXEC:|SYSTEM:|SHELL:/i.test(text)
  const listens = /(^|\s)-\w*l|--listen|LISTEN/i.test(text)
  if (call.args.every((arg) => /^-{1,2}(h|help|version|V)$/.test(arg))) return undefined
  call.node.findings.push(asked('network/raw', 'opens a raw connection'))
  if (shell || call.name === 'socat')
    call.node.findings.push(denied('network/reverse-shell', 'connects a program to the network'))
  if (listens) call.node.findings.push(denied('network/listen', 'waits for connections from outside'))
  if (call.stdin.piped)
    call.node.findings.push(denied('exfiltration/raw', 'sends data over a raw connection'))
  for (const path of call.args.filter((arg) => /(^|:)\//.test(arg)))
    touch(call, path.replace(/^[^/]*:/, ''), 'write')
  for (const host of call.args.filter((arg) => /[.:]/.test(arg) && isStatic(arg)))
    call.node.findings.push(
      ...addressFindings(call.walk, call.scope, host).filter(({ action }) => action === 'deny'),
    )
  return textStream(ANY, ['network'])
}

const remoteCopy: Handler = (call) => {
  const { options, operands } = parseOptions(
    {
      short: 'cFiJloPSDX',
      effects: { '-S': 'program', '-i': 'read', '-F': 'read', '-o': 'data', '-D': 'program' },
    },
    call.args,
  )
  for (const option of options) {
    applyOption(call, option)
    if (option.name === '-o' && /command/i.test(option.value ?? ''))
      call.node.findings.push(unseen('network/ssh-option', 'runs a command on this machine'))
  }
  call.node.findings.push(asked('network/copy', 'copies files to or from another machine'))
  for (const [index, operand] of operands.entries()) {
    if (/^[^/]*:/.test(operand))
      call.node.findings.push(
        ...addressFindings(call.walk, call.scope, operand.replace(/:.*$/, '').replace(/^.*@/, '')),
      )
    else if (
      touch(call, operand, index === operands.length - 1 ? 'write' : 'read').some(({ rule }) =>
        rule.startsWith('secrets'),
      )
    )
      call.node.findings.push(denied('exfiltration/copy', 'copies credentials to another machine'))
  }
  return UNKNOWN
}

const mail: Handler = (call) => {
  call.node.findings.push(asked('network/mail', 'sends mail'))
  if (call.stdin.piped && (call.stdin.from.size > 0 || isOpen(call.stdin.text)))
    call.node.findings.push(denied('exfiltration/mail', 'mails data away'))
  const { options } = parseOptions(
    { short: 'sabcrAfqS', effects: { '-a': 'read', '-A': 'read', '-f': 'read' } },
    call.args,
  )
  for (const option of options) applyOption(call, option)
  return UNKNOWN
}

const tunnel: Handler = (call) => {
  if (call.args.some((arg) => /^-{0,2}(help|version)$/.test(arg))) return undefined
  call.node.findings.push(denied('network/tunnel', 'opens a way in from outside'))
  return UNKNOWN
}

const scanner: Handler = (call) => {
  call.node.findings.push(refused('network/scan', 'examines the network'))
  const { options } = parseOptions(
    {
      short: 'wrzGCWFis',
      effects: { '-w': 'write', '-r': 'read', '-z': 'program', '-F': 'read', '--script': 'program' },
    },
    call.args,
  )
  for (const option of options) applyOption(call, option)
  return textStream(ANY, ['network'])
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

/** Programs that talk to the network. */
export const NETWORK: Readonly<Record<string, Handler>> = {
  curl,
  wget,
  openssl,
  ...names('wget2', wget),
  ...names(
    'dig nslookup host drill delv kdig resolvectl getent ping ping6 traceroute tracepath mtr whois',
    lookup,
  ),
  ...names('nc socat telnet cryptcat pwncat websocat', raw),
  ...names('ftp lftp tftp ncftp', telnetLike),
  ...names('scp sftp', remoteCopy),
  ...names('mail mailx mutt sendmail msmtp swaks', mail),
  ...names(
    'ngrok cloudflared localtunnel lt bore frpc chisel pagekite serveo tailscale zerotier-cli inlets',
    tunnel,
  ),
  ...names('nmap masscan tcpdump tshark wireshark arp-scan zmap nikto sqlmap hydra aircrack-ng', scanner),
  ...tools({
    'http https xh httpie': {
      short: 'aopsA',
      effects: { '-o': 'write', '--output': 'write', '--session': 'data' },
      also: (call, { operands }) => {
        judgeLeaks(call, false)
        for (const word of operands) if (/[=:]?[@]/.test(word)) sendFile(call, word.replace(/^[^@]*@/, ''))
        judgeUrls(
          call,
          operands.filter((word) => /[./:]/.test(word) && !/[=@]/.test(word)).slice(0, 1),
          operands.some((word) => /^(POST|PUT|PATCH|DELETE)$/.test(word)),
        )
      },
    },
    'aria2c axel lynx links w3m elinks browser': {
      short: 'dox',
      effects: {
        '-d': 'write',
        '-o': 'write',
        '--dir': 'write',
        '--on-download-complete': 'program',
        '--on-download-start': 'program',
        '-i': 'read',
      },
      also: (call, { operands }) => {
        judgeUrls(call, operands, false)
        // What they fetch lands under the address's last name.
        for (const url of operands) downloaded(call, url.replace(/[?#].*$/, '').replace(/^.*\//, ''))
      },
    },
    'redis-cli memcached mongosh mongo etcdctl consul nats influx cqlsh': {
      short: 'hpanuPdie',
      also: (call, { operands }) => {
        call.node.findings.push(asked('network/service', 'talks to a database or service'))
        if (operands.some((word) => /^(eval|config|module|slaveof|replicaof|script|debug)$/i.test(word)))
          call.node.findings.push(asked('network/service', 'can run code in the service'))
      },
    },
    'smbclient showmount rpcclient ldapsearch snmpwalk kinit': {
      also: ({ node }) => {
        node.findings.push(asked('network/service', 'talks to a service of the network'))
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
    'ssh-keygen ssh-add ssh-copy-id ssh-agent ssh-keyscan': {
      short: 'tbCNfPDI',
      effects: { '-f': 'read', '-D': 'program', '-y': 'ask: prints a key' },
      also: ({ node }) => {
        node.findings.push(asked('secrets/ssh', 'works with login keys'))
      },
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
        node.findings.push(denied('exfiltration/share', 'sends files to anybody'))
      },
    },
    'youtube-dl yt-dlp': {
      effects: { '--exec': 'shell', '-o': 'write', '--config-location': 'read' },
      operands: 'url',
    },
  }),
}
