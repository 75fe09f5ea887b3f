// Reads a JSON file of the workspace and looks up a path of keys: ["data/a.json", "list", "0", "name"].
import { readFileSync, writeFileSync } from 'node:fs'

const [file, ...names] = process.argv.slice(2)
let value = JSON.parse(readFileSync(file, 'utf8'))
for (const name of names) value = value?.[name]
writeFileSync('reports/last.json', JSON.stringify({ file, names, value }))
console.log(JSON.stringify(value ?? null))
