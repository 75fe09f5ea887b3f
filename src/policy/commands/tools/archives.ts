import { applyOption, runProgram, runText, touch } from '../effects.ts'
import { asked, boxed, denied } from '../finding.ts'
import { parseOptions } from '../options.ts'
import { BELOW, patternText } from '../shell/unknown-text.ts'
import type { Call, Handler } from '../walk.ts'
import { tools } from './tool.ts'

const TAR = {
  short: 'bCfFgHIKLNTVX',
  long: 'blocking-factor format label owner group mode mtime newer exclude strip-components transform xform sort level tape-length warning checkpoint volno-file starting-file one-top-level',
  effects: {
    '--to-command': 'program',
    '--checkpoint-action': 'data',
    '-I': 'program',
    '--use-compress-program': 'program',
    '-F': 'program',
    '--info-script': 'program',
    '--new-volume-script': 'program',
    '--rsh-command': 'program',
    '--rmt-command': 'program',
    '-T': 'read',
    '--files-from': 'read',
    '-X': 'read',
    '--exclude-from': 'read',
    '-g': 'write',
    '--listed-incremental': 'write',
    '--index-file': 'write',
    '-f': 'data',
    '--file': 'data',
    '-C': 'data',
    '--directory': 'data',
    '-P': 'ask: unpacks to absolute paths',
    '--absolute-names': 'ask: unpacks to absolute paths',
    '--remove-files': 'box: removes the files it packed',
  },
}

/** `tar xzf a -C b`: the first word may contain options without a dash; their values follow in order. */
function dashed(args: readonly string[]): readonly string[] {
  const [first, ...rest] = args
  if (first === undefined || first[0] === '-' || !/^[a-zA-Z]+$/.test(first)) return args
  const out: string[] = []
  for (const letter of first) {
    out.push(`-${letter}`)
    if (TAR.short.includes(letter) && rest.length > 0) out.push(rest.shift() as string)
  }
  return [...out, ...rest]
}

const tar: Handler = (call) => {
  const { options, operands } = parseOptions(TAR, dashed(call.args))
  const has = (...names: readonly string[]): boolean => options.some(({ name }) => names.includes(name))
  const value = (...names: readonly string[]): string | undefined =>
    options.findLast(({ name }) => names.includes(name))?.value
  for (const option of options) applyOption(call, option)
  const action = /^exec=(.*)$/s.exec(value('--checkpoint-action') ?? '')
  if (action) runProgram(call, action[1] as string)
  const file = value('-f', '--file')
  const dir = value('-C', '--directory')
  if (file !== undefined && /^[^/]+:/.test(file))
    call.node.findings.push(asked('network/tar', 'an archive on another machine'))
  if (has('-c', '--create', '-r', '--append', '-u', '--update', '-A', '--delete')) {
    if (file !== undefined) touch(call, file, 'write')
    for (const path of operands)
      touch(call, dir === undefined || path[0] === '/' ? path : `${dir}/${path}`, 'tree')
  } else {
    if (file !== undefined) touch(call, file, 'read')
    if (has('-x', '--extract', '--get')) touch(call, `${dir ?? '.'}/${BELOW}`, 'write')
  }
  return undefined
}

/** The directory that an archive is extracted to counts as written. */
const unpackTo =
  (option: string) =>
  (call: Call, parsed: ReturnType<typeof parseOptions>): void => {
    const dir = parsed.options.findLast(({ name }) => name === option)?.value ?? '.'
    if (parsed.options.some(({ name }) => name === '-l' || name === '-t' || name === '-p' || name === '-Z'))
      return
    touch(call, `${dir}/${BELOW}`, 'write')
    for (const member of parsed.operands.slice(1)) touch(call, `${dir}/${patternText(member)}`, 'write')
  }

/** Programs that create and extract archives. */
export const ARCHIVES: Readonly<Record<string, Handler>> = {
  tar,
  ...tools({
    unzip: { short: 'dxP', effects: { '-d': 'data' }, operands: 'data', also: unpackTo('-d') },
    zip: {
      short: 'binstxP',
      effects: {
        '-TT': 'program',
        '--unzip-command': 'program',
        '-O': 'write',
        '--out': 'write',
        '-b': 'write',
      },
      operands: 'tree',
      also: (call, { operands }) => {
        if (operands[0] !== undefined) touch(call, operands[0], 'write')
        if (call.args.some((arg) => /^-\w*T/.test(arg)) && call.args.some((arg) => /^-TT/.test(arg))) {
          const at = call.args.findIndex((arg) => arg.startsWith('-TT'))
          runText(call, (call.args[at] as string).slice(3) || (call.args[at + 1] ?? ''))
          call.node.findings.push(asked('archives/test-command', 'zip runs a command to test the archive'))
        }
      },
    },
    'gzip gunzip zcat bzip2 bunzip2 bzcat xz unxz xzcat zstd unzstd zstdcat lz4 lzma compress uncompress brotli pigz':
      {
        short: 'SMTDoB',
        effects: { '-o': 'write', '--output-dir-flat': 'write', '-D': 'read' },
        operands: 'read',
        also: (call, { operands, options }) => {
          const shows =
            /cat$/.test(call.name) ||
            options.some(({ name }) =>
              ['-c', '--stdout', '--to-stdout', '-l', '--list', '-t', '--test'].includes(name),
            )
          if (!shows && operands.length > 0) for (const path of operands) touch(call, path, 'write')
        },
      },
    '7z 7za 7zz rar unrar': {
      operands: 'data',
      also: (call, { operands }) => {
        call.node.findings.push(boxed('archives/pack', 'packs or unpacks files'))
        for (const path of operands.slice(1)) touch(call, path, 'read')
        const into = call.args.find((arg) => /^-o./.test(arg))?.slice(2)
        if (/^[ex]$/.test(operands[0] ?? '')) touch(call, `${into ?? '.'}/${BELOW}`, 'write')
      },
    },
    'cpio pax': {
      short: 'FIOEHRM',
      effects: { '-F': 'read', '-I': 'read', '-O': 'write', '-D': 'write', '--rsh-command': 'program' },
      also: (call) => touch(call, `./${BELOW}`, 'write'),
    },
    'ar ranlib': { operands: 'write' },
    jar: {
      operands: 'data',
      also: (call) => {
        call.node.findings.push(boxed('archives/pack', 'packs or unpacks files'))
      },
    },
    'dpkg-deb rpm2cpio': { operands: 'read' },
    'uudecode uuencode': { effects: { '-o': 'write' }, operands: 'read' },
    'mksquashfs unsquashfs': { operands: 'write' },
    'dump restore xfsdump': {
      also: ({ node }) => {
        node.findings.push(denied('escape/raw-disk', 'reads or writes whole file systems'))
      },
    },
  }),
}
