import { asked, boxed, denied, type Finding, unseen } from './finding.ts'
import { pathFindings } from './paths.ts'
import { newScope, type Scope } from './shell/scope.ts'
import { isStatic } from './shell/unknown-text.ts'
import { spend, type Walk } from './walk.ts'

/**
 * Inspects code passed to an interpreter on the command line. It cannot prove code harmless, so nothing here leads to
 * `allow`; it detects obvious signs of code that starts programs, connects to the network or reads secrets.
 */
const SPAWN =
  /\bos\.(system|popen|exec\w*|spawn\w*|posix_spawn\w*|fork|kill\w*|dup2)\b|subprocess|\bpty\b|getoutput|child_process|\b(exec|spawn|execFile)Sync\b|\bexecve?[lp]*\s*\(\s*['"]|\bspawn\s*\(|\bsystem\b|\bpopen|shell_exec|passthru|proc_open|pcntl_exec|Runtime\b|ProcessBuilder|\bOpen3\b|\bKernel\.|%x|\bqx\b|Deno\.(run|Command)|Bun\.(spawn|\$)|os\.execute|System\.cmd|os:cmd|Process\.(start|spawn)|Start-Process|Invoke-Expression|\biex\b|start_process|call-process|shell-command|do shell script|\bcprocess\b|process\.(binding|dlopen|mainModule)|\bdlopen\b/
const WORDS_THAT_SPAWN: Readonly<Record<string, RegExp>> = {
  perl: /`|\bexec\b|\bfork\b|\bopen\b[^;]*\|/,
  ruby: /`|\bexec\b|\bfork\b|\bopen\b[^;]*\|/,
  php: /`|\bexec\b/,
  tclsh: /\bexec\b|\bopen\s+["{]?\|/,
  expect: /\bexec\b|\bspawn\b/,
  awk: /\|\s*getline|\|\s*"|\|\s*[a-z(]|\|&/,
  julia: /`|\brun\s*\(/,
  m4: /syscmd/,
  groovy: /\.execute\s*\(/,
  scala: /sys\.process|\.!/,
  clojure: /\bsh\b/,
  lua: /os\.execute|io\.popen/,
  gnuplot: /`|\bsystem\b|^!/m,
}
const DYNAMIC =
  /(?<![.\w])(eval|exec|compile)\s*\(|(?<![.\w])eval\s+[\w$]|new\s+Function|\bFunction\s*\(|then\s*\(\s*eval|__import__|importlib|\bgetattr\s*\(|b64decode|base64|\batob\b|fromCharCode|['"]hex['"]|unhexlify|\bcodecs\b|marshal|pickle|zlib|\bchr\s*\(|\bpack\s*\(|str_rot13|string\.char|\bcharCodeAt\b|\bconstructor\s*[.[(]/
const NETWORK =
  /\bsocket\b|urllib|\brequests\.|\bhttp\.client|httpx|aiohttp|\bfetch\s*\(|axios|require\(['"](node:)?(net|http|https|dgram|tls|http2|dns)['"]\)|\bnet\.(connect|createConnection|Socket)|https?\.(get|request)|XMLHttpRequest|WebSocket|EventSource|Net::|IO::Socket|LWP|fsockopen|stream_socket|curl_|https?:\/\/|open-uri|\/inet6?\/(tcp|udp)|TCPSocket|TCPServer|UNIXSocket|smtplib|ftplib|telnetlib|paramiko|DatagramSocket|HttpClient|WebClient|Invoke-WebRequest|Deno\.connect|Bun\.connect/
const SENDS = /\b(post|put|send\w*|body|upload\w*|connect)\b|\bdata\s*=|\.write\(/i
const DESTROY =
  /\brm(dir)?(Sync)?\s*\(|\bunlink(Sync)?\b|rmtree|os\.(remove|unlink|rmdir|removedirs|truncate)|remove(All|dirs|Sync)?\s*\(|FileUtils|Remove-Item|delete_file|File::Path|remove_tree|Deno\.remove|chmod|chown/
const WRITE =
  /\bopen\s*\([^)]*,\s*(mode\s*=\s*)?['"][rb]*[wax+]|\b(write|append)File|write_text|write_bytes|File\.(write|open)|\bwriteFileSync|createWriteStream|Deno\.writeTextFile|Bun\.write|file_put_contents|\bfopen\s*\([^)]*,\s*['"][wax]|>>?\s*['"]?[/~]|copyfile|\bshutil\.(copy|move)|rename(Sync)?\s*\(|symlink|os\.link/
const ENVIRONMENT =
  /process\.env|os\.environ|\bgetenv\b|%ENV|\$ENV|\bENV\b|ENVIRON|\$_ENV|System\.getenv|Deno\.env|Bun\.env/
const FORKS =
  /\bfork\b\s*(\(\s*\))?\s*(;\s*)?(while|until|for)\b|\bwhile\b\s*\(?\s*(1|true|True)\b[\s\S]{0,40}\bfork\b|\bfor\s*\(\s*;;\s*\)[\s\S]{0,40}\bfork\b|\bloop\b[\s\S]{0,20}\bfork\b/
const WHOLE_DISK = /\b(rmtree|rm\w*|remove\w*|unlink\w*|delete\w*)\s*[(\s]\s*['"]\/['"]|chmod|chown/
const HOME = /\bhomedir\b|Dir\.home|Path\.home|expanduser|\bHOME\b/
const MAX_CODE = 8192

/** Findings about code in some language, from its text. */
export function codeFindings(walk: Walk, text: string, language: string): Finding[] {
  if (!isStatic(text) && text.replace(/[\uFDD0-\uFDEF]/g, '').length < 3)
    return [unseen('code/dynamic', 'runs code that is known only when it runs')]
  if (text.length > MAX_CODE) return [unseen('code/long', 'code that is too long to be looked at')]
  spend(walk, 2 + Math.floor(text.length / 64))
  const scope = newScope(walk.context.cwd ?? walk.context.workspace)
  const spawns = SPAWN.test(text) || WORDS_THAT_SPAWN[language]?.test(text) === true
  const network = NETWORK.test(text)
  const hidden = DYNAMIC.test(text)
  const found: Finding[] = [...literalFindings(walk, scope, text)]
  if (network && SENDS.test(text) && found.some(({ rule }) => rule.startsWith('secrets/')))
    found.push(denied('exfiltration/code', 'code that sends credentials over the network'))
  if (network && (spawns || hidden || ENVIRONMENT.test(text)))
    found.push(
      denied(
        'code/network',
        'code that connects to the network and starts programs, evaluates text or reads variables',
      ),
    )
  if (text.includes('fork') && FORKS.test(text))
    found.push(denied('resource/fork-bomb', 'code that starts itself again and again'))
  if (DESTROY.test(text) && HOME.test(text))
    found.push(unseen('destructive/root', 'code that deletes below the home directory'))
  if (spawns) found.push(plainSpawn(walk, scope, text) ?? spawnFinding(walk, scope, text, language))
  else if (hidden) found.push(asked('code/hidden', 'code that builds other code from text'))
  if (network) found.push(asked('code/network', 'code that connects to the network'))
  if (ENVIRONMENT.test(text)) found.push(boxed('code/environment', 'code that reads environment variables'))
  return found
}

/** The string literals of code in any common language, collected in one pass. */
function literalsOf(text: string): readonly string[] {
  const found: string[] = []
  for (let at = 0; at < text.length && found.length < 64; at++) {
    const open = text[at] as string
    const worded = open === 'q' ? /^q[qxw]?([({[<|!/])/.exec(text.slice(at, at + 3)) : null
    if (!worded && open !== '"' && open !== "'" && open !== '`') continue
    const close = worded ? (CLOSERS[worded[1] as string] ?? (worded[1] as string)) : open
    const start = at + (worded ? worded[0].length : 1)
    const end = closing(text, start, close)
    if (end === -1) continue
    found.push(text.slice(start, end))
    at = end
  }
  return found
}

const CLOSERS: Readonly<Record<string, string>> = { '(': ')', '{': '}', '[': ']', '<': '>' }

function closing(text: string, from: number, close: string): number {
  for (let at = from; at < Math.min(text.length, from + 1024); at++) {
    if (text[at] === '\\') at++
    else if (text[at] === close) return at
  }
  return -1
}

function literalFindings(walk: Walk, scope: Scope, source: string): Finding[] {
  // The first line of a script names its interpreter; nothing is done to that file.
  const text = source.includes('#!') ? source.replace(/^#!.*$/gm, '') : source
  const use = DESTROY.test(text) ? 'delete' : WRITE.test(text) ? 'write' : 'read'
  const found: Finding[] = []
  // `'.e' + 'nv'` is one text.
  const whole = text.includes('+') ? text.replace(/(['"])\s*\+\s*\1/g, '') : text
  for (const literal of [...literalsOf(whole), ...bareParts(text)]) {
    if (!/^(\.{0,2}\/|~|\.[a-z])/.test(literal)) continue
    // `~450` is a number; a lone `/` separates and `//` divides or begins a comment far more often than it is a file.
    if (/^~[^/]/.test(literal) || (/^\/+$/.test(literal) && !WHOLE_DISK.test(text))) continue
    const path = literal.replace(/^~/, walk.context.home)
    const findings = pathFindings(walk, scope, path, use)
    found.push(...findings.filter((finding) => finding.action === 'deny' || finding.action === 'ask'))
  }
  return found
}

/** Paths also occur outside of quotes, or inside other quotes. */
const bareParts = (text: string): readonly string[] =>
  [...text.matchAll(/(?<![\w:/.~})\]%$])[~/][\w./~*-]+/g)].slice(0, 64).map((match) => match[0])

/** Whether code deletes files, which endangers the paths it is given. */
export const destroysFiles = (text: string): boolean => DESTROY.test(text)

const SPAWNS_TEXT =
  /\b(?:subprocess\.(?:run|call|check_call|check_output|Popen|getoutput)|os\.(?:system|popen)|(?:child_process\.)?(?:execSync|execFileSync|spawnSync))\s*\(\s*(?:\[([^\][]*)\]|(['"])((?:(?!\2)[^\\\n])*)\2(?:\s*,\s*\[([^\][]*)\])?)(?=\s*[,)])/g
const LITERALS = /^\s*((['"])[^'"\\\n]*\2\s*,?\s*)*$/
const IMPORTS =
  /\b(import|from)\s+(subprocess|os)\b[^\n;]*|require\(\s*['"](node:)?child_process['"]\s*\)|\bsubprocess\.(PIPE|DEVNULL|STDOUT|CalledProcessError|TimeoutExpired)/g

/** Code that starts only programs written as literals is judged by the commands it starts. */
function plainSpawn(walk: Walk, scope: Scope, text: string): Finding | undefined {
  const lines: string[] = []
  let plain = true
  const rest = text.replace(SPAWNS_TEXT, (_, list?: string, __?: string, line?: string, args?: string) => {
    const words = line === undefined ? list : args
    plain &&= words === undefined || LITERALS.test(words)
    const quoted = literalsOf(words ?? '').map((word) => `'${word}'`)
    lines.push([...(line === undefined ? [] : [line]), ...quoted].join(' '))
    return ''
  })
  if (!plain || lines.length === 0 || SPAWN.test(rest.replace(IMPORTS, '')) || DYNAMIC.test(text))
    return undefined
  const actions = lines.slice(0, 8).map((line) => walk.probe(scope, line))
  if (lines.length > 8 || actions.includes('ask'))
    return unseen('code/spawn', 'code that starts other programs')
  if (actions.includes('deny')) return undefined
  return boxed('code/spawn', 'code that starts other programs')
}

/** Code that starts programs: what the literals say together and alone decides between asking and refusing. */
function spawnFinding(walk: Walk, scope: Scope, text: string, language: string): Finding {
  const literals = literalsOf(text)
  const tries = [
    ...literals,
    literals.join(' '),
    literals.join(''),
    // In languages of commands a statement is one.
    ...(/^(python|node|ipython)$/.test(language) ? [] : text.split(/[;\n{}]/)).map((part) =>
      part.replace(/^\s*(exec|spawn|system|!)\s+/, ''),
    ),
  ]
  for (const line of tries.slice(0, 24)) {
    if (line.trim() !== '' && line.length < 2048 && walk.probe(scope, line) === 'deny')
      return denied('code/catastrophe', `code that runs \`${line.trim().slice(0, 60)}\``)
  }
  return unseen('code/spawn', 'code that starts other programs')
}
