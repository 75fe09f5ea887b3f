/** Writes the man page `dist/man/ringfence.1` from the help texts of the built command line. */
import { mkdirSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { output, root } from './setup.mjs'

const program = join(root, 'dist', 'cli', 'ringfence.cjs')
const help = (...args) => output(process.execPath, [program, 'help', ...args])

/** Text as roff: a backslash is escaped, and a dot or apostrophe at the start of a line is no request. */
const roff = (text) =>
  text
    .replaceAll('\\', '\\e')
    .replaceAll('-', '\\-')
    .split('\n')
    .map((line) => line.replace(/^([.'])/, '\\&$1'))
    .join('\n')

const literal = (text) => `.nf\n${roff(text.trimEnd())}\n.fi\n`

/** The commands in the order of the overview. */
const commandsIn = (overview) =>
  [...overview.matchAll(/^ {2}([a-z][a-z-]*) {1,}\S/gm)].map(([, name]) => name)

function writeManPage(file = join(root, 'dist', 'man', 'ringfence.1')) {
  const overview = help()
  const names = [...new Set(commandsIn(overview.split('examples:')[0]))].filter(
    (name) => name !== 'ringfence',
  )
  const sections = names.map((name) => `.SS ringfence ${roff(name)}\n${literal(help(name))}`)
  const version = output(process.execPath, [program, '--version']).trim()
  mkdirSync(dirname(file), { recursive: true })
  writeFileSync(
    file,
    `.TH RINGFENCE 1 "" "ringfence ${version}" "User Commands"
.SH NAME
ringfence \\- run the commands of AI agents in a sandbox
.SH DESCRIPTION
${literal(overview)}.SH COMMANDS
${sections.join('')}`,
  )
}

writeManPage()
