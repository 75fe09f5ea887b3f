import { SandboxError } from '../model/errors.ts'
import { shellWord } from '../model/text/shell-quote.ts'

/** Reads a Dockerfile as the steps of a template build. What has no meaning here is refused by name, never left out silently. */

/** One step, with the names and arguments of E2B's builds. */
type DockerStep = { readonly type: string; readonly args: readonly string[] }

/** What a Dockerfile asks for. */
export type Dockerfile = {
  readonly image: string
  readonly steps: readonly DockerStep[]
  readonly startCommand: string | undefined
}

/** They describe an image for engines and change no file. */
const WITHOUT_EFFECT = ['EXPOSE', 'LABEL', 'MAINTAINER', 'STOPSIGNAL', 'HEALTHCHECK', 'VOLUME']

const refused = (line: string, why: string, hint?: string): SandboxError =>
  new SandboxError('unsupported', `the Dockerfile cannot be built: \`${line.slice(0, 120)}\`: ${why}`, {
    ...(hint && { hint }),
  })

/** The instructions, with continued lines joined and comments left out. */
function linesOf(text: string): readonly string[] {
  const kept = text
    .split(/\r?\n/)
    .filter((line) => !/^\s*#/.test(line))
    .join('\n')
  return kept
    .replace(/\\[ \t]*\n/g, ' ')
    .split('\n')
    .map((line) => line.trim())
    .filter((line) => line !== '')
}

/** `["a", "b"]`, or undefined for another form. */
function jsonForm(text: string): readonly string[] | undefined {
  if (!text.startsWith('[')) return undefined
  try {
    const value: unknown = JSON.parse(text)
    return Array.isArray(value) && value.every((one) => typeof one === 'string') ? value : undefined
  } catch {
    return undefined
  }
}

const commandOf = (text: string): string => jsonForm(text)?.map(shellWord).join(' ') ?? text

/** Words as the shell separates them, with quotes removed. */
function wordsOf(text: string): readonly string[] {
  const words = text.match(/(?:"(?:\\.|[^"\\])*"|'[^']*'|\\.|[^\s"'\\])+/g) ?? []
  return words.map((word) =>
    word.replace(/"((?:\\.|[^"\\])*)"|'([^']*)'|\\(.)/g, (_, double, single, escaped) =>
      double === undefined ? (single ?? escaped ?? '') : double.replace(/\\(.)/g, '$1'),
    ),
  )
}

/** E2B's own images stand for this server's programs. */
const PLAIN_IMAGES = /^(docker\.io\/)?e2bdev\/(base|code-interpreter)(:[\w.-]+)?$/

/** Whether an image stands for this server's programs. */
export const isPlainImage = (name: string): boolean => PLAIN_IMAGES.test(name)

/** These programs have no configuration of an image: steps run as root, and the template is for `user`. */
function asBaseImage(steps: readonly DockerStep[]): readonly DockerStep[] {
  const names = (type: string): boolean => steps.some((step) => step.type === type)
  return [
    { type: 'USER', args: ['root'] },
    { type: 'WORKDIR', args: ['/'] },
    ...steps,
    ...(names('USER') ? [] : [{ type: 'USER', args: ['user'] }]),
    ...(names('WORKDIR') ? [] : [{ type: 'WORKDIR', args: ['/home/user'] }]),
  ]
}

/** How many characters variables may add to a Dockerfile: `ENV A=$A$A` doubles a value with every line. */
const MAX_FILLED = 1024 * 1024

/** Reads one Dockerfile. */
class Reader {
  readonly #values = new Map<string, string>()
  #added = 0
  readonly #steps: DockerStep[] = []
  #image: string | undefined
  #command: string | undefined
  #entrypoint: string | undefined

  read(text: string): Dockerfile {
    for (const line of linesOf(text)) this.#line(line)
    if (this.#image === undefined) throw refused('', 'it has no FROM')
    const steps = isPlainImage(this.#image) ? asBaseImage(this.#steps) : this.#steps
    const started = [this.#entrypoint, this.#command].filter((one) => one !== undefined).join(' ')
    return { image: this.#image, steps, startCommand: started || undefined }
  }

  #line(line: string): void {
    const [, name = '', rest = ''] = /^(\S+)\s*(.*)$/s.exec(line) ?? []
    const type = name.toUpperCase()
    if (this.#image === undefined && type !== 'FROM' && type !== 'ARG')
      throw refused(line, 'FROM comes first')
    if (type === 'FROM') this.#from(line, rest)
    else if (type === 'ARG') this.#argument(rest)
    else if (type === 'ENV') this.#env(line, rest)
    else if (type === 'RUN') this.#run(line, rest)
    else if (type === 'COPY' || type === 'ADD') this.#copy(line, rest)
    else if (type === 'WORKDIR' || type === 'USER') this.#setDefaults(type, rest)
    else if (type === 'CMD') this.#command = commandOf(rest)
    else if (type === 'ENTRYPOINT') this.#entrypoint = commandOf(rest)
    else if (!WITHOUT_EFFECT.includes(type)) throw refused(line, `\`${type}\` is not supported`)
  }

  #filled(text: string): string {
    return text.replace(/\$(?:\{(\w+)\}|(\w+))/g, (all, braced, plain) => {
      const value = this.#values.get(braced ?? plain)
      this.#added += value?.length ?? 0
      if (this.#added > MAX_FILLED)
        throw new SandboxError(
          'too-large',
          `the variables of the Dockerfile add more than ${MAX_FILLED} characters`,
          { hint: 'use shorter values, or set them in a RUN' },
        )
      return value ?? all
    })
  }

  #from(line: string, rest: string): void {
    if (this.#image !== undefined) throw refused(line, 'several stages are not supported')
    const [image, ...more] = wordsOf(rest).filter((word) => !word.startsWith('--platform='))
    if (image === undefined || (more.length > 0 && more[0]?.toUpperCase() !== 'AS'))
      throw refused(line, 'not understood')
    this.#image = this.#filled(image)
  }

  /** Its value is also a variable of the steps; a build here takes no arguments from outside. */
  #argument(rest: string): void {
    const [, name, value] = /^(\w+)(?:=(.*))?$/s.exec(wordsOf(rest)[0] ?? '') ?? []
    if (name === undefined || value === undefined) return
    const filled = this.#set(name, value)
    if (this.#image !== undefined) this.#steps.push({ type: 'ENV', args: [name, filled] })
  }

  #set(name: string, value: string): string {
    const filled = this.#filled(value)
    this.#values.set(name, filled)
    return filled
  }

  #env(line: string, rest: string): void {
    const words = wordsOf(rest)
    const isOld = words[0] !== undefined && !words[0].includes('=')
    const pairs = isOld
      ? [
          [
            words[0] as string,
            rest.slice(rest.indexOf(words[0] as string) + (words[0] as string).length).trim(),
          ],
        ]
      : words.map((word) => [word.slice(0, word.indexOf('=')), word.slice(word.indexOf('=') + 1)])
    for (const [name = '', value = ''] of pairs) {
      if (!/^[A-Za-z_]\w*$/.test(name)) throw refused(line, 'not understood')
      this.#steps.push({ type: 'ENV', args: [name, this.#set(name, value)] })
    }
  }

  #run(line: string, rest: string): void {
    if (/^--|<</.test(rest))
      throw refused(line, 'options and here-documents are not supported', 'write a shell line')
    this.#steps.push({ type: 'RUN', args: [commandOf(rest)] })
  }

  #copy(line: string, rest: string): void {
    const words = jsonForm(rest.replace(/^(--\S+\s+)*/, '')) ?? wordsOf(rest)
    const options = wordsOf(rest).filter((word) => word.startsWith('--'))
    const known = Object.fromEntries(options.map((word) => word.slice(2).split('=', 2)))
    const unknown = Object.keys(known).find((name) => name !== 'chown' && name !== 'chmod')
    if (unknown !== undefined) throw refused(line, `\`--${unknown}\` is not supported`)
    const paths = words.filter((word) => !word.startsWith('--')).map((word) => this.#filled(word))
    const to = paths.at(-1)
    if (to === undefined || paths.length < 2) throw refused(line, 'not understood')
    for (const from of paths.slice(0, -1)) {
      if (/^[a-z]+:\/\//.test(from)) throw refused(line, 'only files of the context can be added')
      const target = paths.length > 2 && !to.endsWith('/') ? `${to}/` : to
      this.#steps.push({
        type: 'COPY',
        args: [from.replace(/^\/+/, '') || '.', target, known.chown ?? '', known.chmod ?? ''],
      })
    }
  }

  #setDefaults(type: string, rest: string): void {
    this.#steps.push({ type, args: [this.#filled(wordsOf(rest)[0] ?? '')] })
  }
}

/** Reads a Dockerfile; throws if it asks for something that a build here cannot do. */
export const parseDockerfile = (text: string): Dockerfile => new Reader().read(text)
