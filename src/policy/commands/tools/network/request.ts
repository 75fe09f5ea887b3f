import { addressFindings, hostOf, isLocalHost } from '../../address.ts'
import { touch } from '../../effects.ts'
import { SECRET_VARIABLE } from '../../environment.ts'
import { asked, boxed, denied } from '../../finding.ts'
import { absolute } from '../../paths.ts'
import { FROM_NETWORK } from '../../shell/scope.ts'
import { ANY, isOpen, isStatic, show } from '../../shell/unknown-text.ts'
import type { Call } from '../../walk.ts'

/** Data that a request sends and receives, for every HTTP client. */

/** A file that is uploaded; `-` is standard input. */
export function sendFile(call: Call, file: string): void {
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

/** Secret variables and outputs of other commands in the arguments of a network program. */
export function judgeLeaks(call: Call, inHeadersOnly: boolean): void {
  const secret = [...call.walk.sources.values()].find(
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

const CONTROL_PATH = /\/(v1\/)?(policy|policies|approvals?|sandbox(es)?|audit|rules|keys)\b/i

/** Local ports of daemons that control this machine. */
const DAEMON_PORTS =
  /^(2375|2376|2379|2380|4243|6443|8001|9229|10250|10255|22|25|111|631|3306|5432|6379|11211|27017|9200|9300)$/

/** A web server on the loopback interface, such as a development server. A sandbox has its own loopback interface. */
function isOwnService(url: string): boolean {
  if (!isStatic(url) || CONTROL_PATH.test(url)) return false
  // Only the usual spellings: another spelling of the same address is suspicious.
  const plain = /^(?:https?:\/\/)?(?:localhost|127\.0\.0\.1|\[::1\])(?::(\d+))?(?:[/?#]|$)/.exec(url)
  return plain !== null && !DAEMON_PORTS.test(plain[1] ?? '')
}

/** The addresses that a request connects to. */
export function judgeUrls(call: Call, urls: readonly string[], mutates: boolean): void {
  const local = urls.length > 0 && urls.every(isOwnService) && !mutates
  call.node.findings.push(
    local
      ? boxed('network/loopback', 'connects to a service of the same sandbox')
      : asked('network/request', 'connects to the network'),
  )
  for (const url of urls) {
    for (const finding of addressFindings(call.walk, call.scope, url)) call.node.findings.push(finding)
    if (!mutates || !isStatic(url) || !CONTROL_PATH.test(url)) continue
    const host = hostOf(url)
    if (host !== undefined && isLocalHost(host))
      call.node.findings.push(denied('tampering/control-plane', 'changes the sandbox through its own API'))
  }
}

/** Records a file whose content came from the network. */
export function downloaded(call: Call, file: string): void {
  if (file === '' || file === '-') return
  touch(call, file, 'write')
  const path = absolute(file, call.scope.cwds[0] ?? ANY)
  call.scope.files.set(path, { kind: 'content', stream: FROM_NETWORK })
}
