/** One setting of a git configuration: `core.hookspath`, `filter.lfs.clean`; section and key in lower case. */
export type GitSetting = { readonly name: string; readonly value: string }

const SECTION = /^\[\s*([A-Za-z0-9.-]+)(?:\s+"((?:[^"\\]|\\.)*)")?\s*\]/
const KEY = /^([A-Za-z][A-Za-z0-9-]*)\s*(?:=\s*(.*))?$/

/** Parses the settings of a configuration in order. Lines that git would not read are skipped. */
export function parseGitConfig(text: string): readonly GitSetting[] {
  const settings: GitSetting[] = []
  let section = ''
  for (let rest of text.replace(/\\\r?\n/g, '').split(/\r?\n/)) {
    rest = rest.trim()
    const head = SECTION.exec(rest)
    if (head) {
      const [whole, name = '', sub] = head
      section =
        sub === undefined ? name.toLowerCase() : `${name.toLowerCase()}.${sub.replace(/\\(.)/g, '$1')}`
      rest = rest.slice(whole.length).trim()
    }
    const [, key, value] = KEY.exec(rest) ?? []
    if (key && section)
      settings.push({ name: `${section}.${key.toLowerCase()}`, value: plain(value ?? 'true') })
  }
  return settings
}

/** Removes quotes, escapes and a trailing comment. */
function plain(raw: string): string {
  let [out, quoted] = ['', false]
  for (let at = 0; at < raw.length; at++) {
    const char = raw[at] as string
    if (char === '"') quoted = !quoted
    else if (char === '\\') out += unescaped(raw[++at] ?? '')
    else if (!quoted && (char === '#' || char === ';')) break
    else out += char
  }
  return out.trim()
}

const unescaped = (char: string): string => ({ n: '\n', t: '\t', b: '\b' })[char] ?? char

/** Settings whose value is a program or a shell line. */
const PROGRAM =
  /^(core\.(fsmonitor|sshcommand|editor|pager|askpass|gitproxy|alternaterefscommand)|sequence\.editor|diff\.external|(diff|difftool|mergetool|filter|merge|guitool|browser|man|trailer|remote|pager|credential|gpg|hook)\..+|(credential|gpg|interactive|uploadpack|sendemail|web)\.[a-z]+|alias\..+)$/

/** The words of a setting that may name a program in the working tree. */
export const programWords = ({ name, value }: GitSetting): readonly string[] =>
  PROGRAM.test(name) ? value.split(/[\s"'`;|&<>()=$!]+/).filter((word) => word !== '') : []
