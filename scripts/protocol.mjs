/**
 * Generates the protocol constants of the host (TypeScript) and the guest agent (C) from guest/protocol.json.
 * Run `node scripts/protocol.mjs` after every change; a test fails while the generated files are out of date.
 */
import { readFileSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'

const root = dirname(dirname(fileURLToPath(import.meta.url)))
const SOURCE = 'guest/protocol.json'
const NOTICE = `Generated from ${SOURCE} by scripts/protocol.mjs; do not edit.`

/** Every generated file with its text. */
export function generated() {
  const protocol = JSON.parse(readFileSync(join(root, SOURCE), 'utf8'))
  return [
    ['guest/agent/common/protocol.h', header(protocol)],
    ['src/host/guest/protocol.ts', module(protocol)],
  ]
}

const upper = (name) => name.replaceAll('-', '_').toUpperCase()
const framesOf = ({ frames }) =>
  ['agent', 'host', 'both'].flatMap((from) =>
    Object.entries(frames[from]).map(([name, [letter, about]]) => ({ from, name, letter, about })),
  )
const rowsOf = ({ about, ...rows }) => Object.entries(rows)

/** The C header. */
function header(protocol) {
  const { version, numbers, agentNumbers, exitCodes, texts, letters, fields, lists } = protocol
  const constant = ([name, [value, about]]) => `  ${name} = ${value}, /* ${about} */`
  const frame = ({ from, name, letter, about }) =>
    `  FRAME_${upper(name)} = '${letter}', /* ${from === 'both' ? 'both ways' : `from the ${from}`}: ${about} */`
  const letterEnum = ([group, names]) =>
    `enum { ${Object.entries(names)
      .map(([name, letter]) => `${group}_${upper(name)} = '${letter}'`)
      .join(', ')} };`
  const table = ([name, rows]) => [
    `/* ${rows.about}: each row is a name and how many arguments follow it. */`,
    `#define ${name}(ROW) \\`,
    ...rowsOf(rows).map(
      ([field, words], at, all) =>
        `  ROW("${field}", ${words.length})${words.length > 0 ? ` /* ${words.join(' ')} */` : ''}${at + 1 < all.length ? ' \\' : ''}`,
    ),
    '',
  ]
  return [
    `/* ${NOTICE} */`,
    '/* clang-format off */',
    '#ifndef RINGFENCE_PROTOCOL_H',
    '#define RINGFENCE_PROTOCOL_H',
    '',
    `/* ${version.about} */`,
    `enum { PROTOCOL_VERSION = ${version.value} };`,
    '',
    `/* ${protocol.frames.about} */`,
    'enum frame_type {',
    ...framesOf(protocol).map(frame),
    '};',
    '',
    'enum {',
    ...Object.entries({ ...numbers, ...agentNumbers }).map(constant),
    '};',
    '',
    'enum {',
    ...Object.entries(exitCodes).map(constant),
    '};',
    '',
    ...Object.entries(texts).map(([name, [text, about]]) => `#define ${name} "${text}" /* ${about} */`),
    '',
    ...Object.entries(letters).map(letterEnum),
    '',
    ...Object.entries(lists).flatMap(([group, names]) =>
      names.map((name) => `#define ${group.replace(/S$/, '')}_${upper(name)} "${name}"`),
    ),
    '',
    ...Object.entries(fields).flatMap(table),
    '#endif',
    '',
  ].join('\n')
}

/** The TypeScript module. */
function module(protocol) {
  const { version, numbers, texts, letters, fields, lists } = protocol
  const key = (name) => (/^[a-z_]\w*$/i.test(name) ? name : `'${name}'`)
  const letterTable = (from) => [
    `/** Letters of the frames that the ${from} sends. */`,
    `export const ${upper(from)}_FRAMES = {`,
    ...framesOf(protocol)
      .filter((one) => one.from === from || one.from === 'both')
      .map(({ name, letter, about }) => `  /** ${about} */\n  ${name}: '${letter}',`),
    '} as const',
    '',
  ]
  const constant = ([name, [value, about]]) => [
    `/** ${about} */`,
    `export const ${name} = ${typeof value === 'string' ? `'${value}'` : digits(value)}`,
  ]
  return [
    `// ${NOTICE}`,
    '',
    `/** ${version.about} */`,
    `export const PROTOCOL_VERSION = '${version.value}'`,
    '',
    ...letterTable('agent'),
    ...letterTable('host'),
    ...Object.entries({ ...numbers, ...texts }).flatMap(constant),
    '',
    ...Object.entries(letters).flatMap(([group, names]) => [
      `/** The agent's letters for ${group.toLowerCase().replace('_', ' ')}s. */`,
      `export const ${group}S = {`,
      ...Object.entries(names).map(([name, letter]) => `  ${key(letter)}: '${name}',`),
      '} as const',
      '',
    ]),
    ...Object.entries(lists).flatMap(([name, values]) => [
      `/** Values of ${name.toLowerCase().replace('_', ' ')} that the agent reports. */`,
      `export const ${name} = [${values.map((value) => `'${value}'`).join(', ')}] as const`,
      '',
    ]),
    ...Object.entries(fields).flatMap(([name, rows]) => [
      `/** ${rows.about}, with how many arguments each takes. */`,
      `export const ${name}: Readonly<Record<string, number>> = {`,
      ...rowsOf(rows).map(
        ([field, words]) =>
          `  ${key(field)}: ${words.length},${words.length > 0 ? ` // ${words.join(' ')}` : ''}`,
      ),
      '}',
      '',
    ]),
  ]
    .join('\n')
    .trimEnd()
    .concat('\n')
}

const digits = (value) => String(value).replace(/\B(?=(\d{3})+$)/g, value >= 10_000 ? '_' : '')

if (import.meta.url === pathToFileURL(process.argv[1]).href)
  for (const [path, text] of generated()) writeFileSync(join(root, path), text)
