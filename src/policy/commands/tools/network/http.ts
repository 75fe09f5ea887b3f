import { addressFindings } from '../../address.ts'
import { applyOption, touch } from '../../effects.ts'
import { asked } from '../../finding.ts'
import { type Option, type OptionSpec, parseOptions } from '../../options.ts'
import { FROM_NETWORK } from '../../shell/scope.ts'
import { isStatic } from '../../shell/unknown-text.ts'
import type { Call, Handler } from '../../walk.ts'
import { tools } from '../tool.ts'
import { downloaded, judgeLeaks, judgeUrls, sendFile } from './request.ts'

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

/** Data that is sent: files are uploads, and so are the values of secret variables. */
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
  return FROM_NETWORK
}

const isMutation = ({ name, value }: Option): boolean =>
  CURL_SENDS.test(name) ||
  (/^(-X|--request|--method)$/.test(name) && !/^(GET|HEAD|OPTIONS)$/i.test(value ?? ''))

function socket(call: Call, path: string): void {
  call.node.findings.push(asked('network/socket', 'connects to a local service through a socket'))
  touch(call, path, 'write')
}

function pinned(call: Call, value: string): void {
  for (const part of value.split(':').slice(2))
    call.node.findings.push(...addressFindings(call.walk, call.scope, part.replace(/[[\]+]/g, '')))
}

/** Records the target file of a download, so that running it later in the line is detected. */
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
  return FROM_NETWORK
}

/** Programs that send HTTP requests. */
export const HTTP: Readonly<Record<string, Handler>> = {
  curl,
  wget,
  wget2: wget,
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
        // The download is saved under the last segment of the URL.
        for (const url of operands) downloaded(call, url.replace(/[?#].*$/, '').replace(/^.*\//, ''))
      },
    },
    'youtube-dl yt-dlp': {
      short: 'fPSraNRI',
      long: 'format output-na-placeholder paths format-sort limit-rate batch-file concurrent-fragments retries playlist-items sub-langs sub-format audio-format audio-quality merge-output-format recode-video remux-video download-sections match-filter user-agent referer cookies print',
      effects: { '--exec': 'shell', '-o': 'write', '--config-location': 'read' },
      operands: 'url',
    },
  }),
}
