import { commandNames, helpText } from './help/help.ts'
import { parseOptions, usage } from './options/options.ts'
import { outStyled } from './terminal/output.ts'

/** What can follow a command: its actions and flags, as its help text shows them. */
type Words = { readonly actions: readonly string[]; readonly flags: readonly string[] }

function wordsOf(command: string): Words {
  const text = helpText(command)
  const usages = [...text.matchAll(new RegExp(`ringfence ${command} ([a-z][a-z|-]*)(?=[ \\n])`, 'g'))]
  const actions = usages.flatMap(([, words = '']) => words.split('|'))
  const flags = [...text.matchAll(/(?<![\w-])--[a-z][a-z-]+/g)].map(([flag]) => flag)
  return { actions: unique(actions), flags: unique([...flags, '--json', '--help']) }
}

const unique = (words: readonly string[]): readonly string[] => [...new Set(words)].sort()

const bash = (): string => `# bash: source <(ringfence completion bash)
_ringfence() {
  local word=\${COMP_WORDS[COMP_CWORD]} command=\${COMP_WORDS[1]}
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W '${commandNames().join(' ')}' -- "$word"))
    return
  fi
  case $command in
${commandNames()
  .map((name) => {
    const { actions, flags } = wordsOf(name)
    return `    ${name}) COMPREPLY=($(compgen -W '${[...actions, ...flags].join(' ')}' -- "$word")) ;;`
  })
  .join('\n')}
  esac
  [ \${#COMPREPLY[@]} -gt 0 ] || COMPREPLY=($(compgen -f -- "$word"))
}
complete -o filenames -F _ringfence ringfence
`

const zsh = (): string => `#compdef ringfence
# zsh: source <(ringfence completion zsh)
_ringfence() {
  if (( CURRENT == 2 )); then
    compadd -- ${commandNames().join(' ')}
    return
  fi
  case $words[2] in
${commandNames()
  .map((name) => {
    const { actions, flags } = wordsOf(name)
    return `    ${name}) compadd -- ${[...actions, ...flags].join(' ')} ;;`
  })
  .join('\n')}
  esac
  _files
}
compdef _ringfence ringfence
`

const fish = (): string =>
  [
    '# fish: ringfence completion fish | source',
    `complete -c ringfence -n __fish_use_subcommand -f -a '${commandNames().join(' ')}'`,
    ...commandNames().flatMap((name) => {
      const { actions, flags } = wordsOf(name)
      const seen = `-n '__fish_seen_subcommand_from ${name}'`
      return [
        ...(actions.length > 0 ? [`complete -c ringfence ${seen} -a '${actions.join(' ')}'`] : []),
        ...flags.map((flag) => `complete -c ringfence ${seen} -l ${flag.slice(2)}`),
      ]
    }),
    '',
  ].join('\n')

const SHELLS: Readonly<Record<string, () => string>> = { bash, zsh, fish }

/** `ringfence completion bash|zsh|fish`: a script for the shell, made from the help texts. */
export async function completion(args: readonly string[]): Promise<number> {
  const { positionals } = parseOptions('completion', args, {})
  const [shell = ''] = positionals
  const script = Object.hasOwn(SHELLS, shell) ? SHELLS[shell] : undefined
  if (!script) throw usage('completion', `name a shell: ${Object.keys(SHELLS).join(', ')}`)
  outStyled(script())
  return 0
}
