/**
 * Draws a terminal's screen (text with colours, as `tmux capture-pane -e` prints it) as SVG, for the documentation.
 * Usage: node scripts/terminal-picture.mjs SCREEN.ansi PICTURE.svg [FROM TO]...   (replaces texts, such as temporary paths)
 */
import { readFileSync, writeFileSync } from 'node:fs'

const [from, to, ...replaced] = process.argv.slice(2)
const WIDTH = 8.4
const HEIGHT = 18
const PAD = 14
const BASIC = ['#3b4252', '#e06c75', '#98c379', '#e5c07b', '#61afef', '#c678dd', '#56b6c2', '#dcdfe4']
const BRIGHT = ['#7f848e', '#ef7c86', '#a9d38c', '#f0cf8e', '#75bffd', '#d68bec', '#68c8d4', '#ffffff']

const escaped = (text) => text.replace(/&/g, '&amp;').replace(/</g, '&lt;').replace(/>/g, '&gt;')
const cube = (n) => [0, 95, 135, 175, 215, 255][n]

/** A colour of the 256 of terminals. */
function indexed(n) {
  if (n < 8) return BASIC[n]
  if (n < 16) return BRIGHT[n - 8]
  if (n > 231) return `rgb(${8 + (n - 232) * 10},${8 + (n - 232) * 10},${8 + (n - 232) * 10})`
  const at = n - 16
  return `rgb(${cube(Math.floor(at / 36))},${cube(Math.floor(at / 6) % 6)},${cube(at % 6)})`
}

/** The style after an escape sequence. */
function styled(style, codes) {
  const next = { ...style }
  for (let at = 0; at < codes.length; at++) {
    const code = codes[at]
    if (code === 0) Object.assign(next, { fill: undefined, bold: false, dim: false, reverse: false })
    else if (code === 1) next.bold = true
    else if (code === 2) next.dim = true
    else if (code === 7) next.reverse = true
    else if (code === 22) Object.assign(next, { bold: false, dim: false })
    else if (code === 27) next.reverse = false
    else if (code === 39) next.fill = undefined
    else if (code >= 30 && code <= 37) next.fill = BASIC[code - 30]
    else if (code >= 90 && code <= 97) next.fill = BRIGHT[code - 90]
    else if (code === 38 || code === 48) {
      const isTrue = codes[at + 1] === 2
      const colour = isTrue
        ? `rgb(${codes[at + 2]},${codes[at + 3]},${codes[at + 4]})`
        : indexed(codes[at + 2] ?? 0)
      if (code === 38) next.fill = colour
      at += isTrue ? 4 : 2
    }
  }
  return next
}

/** One row as pieces of text with a style. */
function rowOf(line, y) {
  let style = {}
  let column = 0
  let svg = ''
  for (const [, codes, text] of line.matchAll(/\x1b\[([0-9;]*)m|([^\x1b]+)|\x1b[^m]*m?/g)) {
    if (text === undefined) {
      if (codes !== undefined) style = styled(style, codes === '' ? [0] : codes.split(';').map(Number))
      continue
    }
    // Browsers drop spaces at both ends.
    const drawn = text.trim()
    const lead = [...text].length - [...text.trimStart()].length
    const attributes = [
      `x="${(PAD + (column + lead) * WIDTH).toFixed(1)}" y="${y}"`,
      `textLength="${([...drawn].length * WIDTH).toFixed(1)}"`,
      ...(style.fill || style.reverse ? [`fill="${style.fill ?? '#ffffff'}"`] : []),
      ...(style.bold ? ['font-weight="bold"'] : []),
      ...(style.dim ? ['opacity=".6"'] : []),
    ]
    if (drawn !== '') svg += `<text ${attributes.join(' ')}>${escaped(drawn)}</text>\n`
    column += [...text].length
  }
  return svg
}

let screen = readFileSync(from, 'utf8')
for (let at = 0; at + 1 < replaced.length; at += 2) {
  const [old, fresh] = [replaced[at], replaced[at + 1]]
  screen = screen.replaceAll(old, fresh)
}
// Empty rows say nothing, so of several only one is drawn.
const all = screen.replace(/(\s|\x1b\[[0-9;]*m)+$/, '').split('\n')
const isEmpty = (line) => (line ?? '').replace(/\x1b\[[0-9;]*m/g, '').trim() === ''
const lines = all.filter((line, index) => !(isEmpty(line) && isEmpty(all[index - 1])))
const columns = 100
const [width, height] = [columns * WIDTH + 2 * PAD, lines.length * HEIGHT + 2 * PAD]
const rows = lines.map((line, index) => rowOf(line, PAD + 13 + index * HEIGHT)).join('')
writeFileSync(
  to,
  `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}">\n` +
    `<title>Screen of a terminal</title>\n` +
    `<rect width="100%" height="100%" rx="8" fill="#1b1e24"/>\n` +
    `<g font-family="ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace" font-size="14" fill="#dcdfe4" xml:space="preserve">\n${rows}</g>\n</svg>\n`,
)
