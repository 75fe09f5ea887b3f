import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { configShape } from '../config.ts'
import type { JsonSchema } from '../shape.ts'
import { configSchema } from './config.ts'

type Setting = { readonly path: readonly string[]; readonly schema: JsonSchema }

function settings(schema: JsonSchema, at: readonly string[] = []): Setting[] {
  const inner = (schema.items ?? schema) as { readonly properties?: Record<string, JsonSchema> }
  return Object.entries(inner.properties ?? {}).flatMap(([name, one]) => [
    { path: [...at, name], schema: one },
    ...settings(one, [...at, name]),
  ])
}

const SETTINGS = settings(configSchema())
const withDefault = SETTINGS.filter(({ schema }) => schema.default !== undefined)

/** The sources that read settings, without tests and without the reference itself. */
function sources(dir: string): string[] {
  return readdirSync(dir, { withFileTypes: true, recursive: true })
    .filter((entry) => entry.isFile() && entry.name.endsWith('.ts') && !entry.name.endsWith('.test.ts'))
    .filter((entry) => !entry.parentPath.includes('/reference'))
    .map((entry) => readFileSync(join(entry.parentPath, entry.name), 'utf8'))
}

describe('the reference of the configuration', () => {
  test('describes every setting in a sentence', () => {
    expect(SETTINGS.length).toBeGreaterThan(120)
    for (const { path, schema } of SETTINGS) expect(schema.description, path.join('.')).toMatch(/^.{8,}\.$/s)
  })

  test('changes nothing else of the schema', () => {
    // Names of settings are kept: `description` could be one.
    const strip = (schema: unknown): unknown => {
      if (Array.isArray(schema)) return schema.map(strip)
      if (typeof schema !== 'object' || schema === null) return schema
      const { description: _, default: __, properties, items, ...rest } = schema as Record<string, unknown>
      return {
        ...rest,
        ...(properties
          ? { properties: Object.fromEntries(Object.entries(properties).map(([k, v]) => [k, strip(v)])) }
          : {}),
        ...(items ? { items: strip(items) } : {}),
      }
    }
    expect(strip(configSchema())).toEqual(configShape.schema)
  })

  test('names only defaults that the file could contain', () => {
    for (const { path, schema } of withDefault.filter(
      ({ path }) => path.length === 2 && !['mcp', 'tenant', 'kubernetes'].includes(path[0] as string),
    )) {
      const [table, name] = path as [string, string]
      expect(
        () => configShape.parse({ [table]: { [name]: schema.default } }, ''),
        path.join('.'),
      ).not.toThrow()
    }
  })

  test('names the defaults that the code uses', () => {
    const files = sources('src')
    const wrong = withDefault.filter(({ path, schema }) => {
      const values = files.flatMap((code) => defaultsIn(code, path.at(-1) as string))
      return values.length > 0 && !values.includes(JSON.stringify(schema.default))
    })
    expect(wrong.map(({ path, schema }) => `${path.join('.')} = ${schema.default}`)).toEqual([])
    // Control: the code is read at all.
    expect(files.flatMap((code) => defaultsIn(code, 'keep_days'))).toContain('30')
  })
})

/** The values after `name ??` and `name =` in a file, as JSON. */
function defaultsIn(code: string, name: string): string[] {
  const value = "(\\[[^\\]]*\\]|[\\w.*' ]+?)(?=[,)\\n;]| \\})"
  const uses = [...code.matchAll(new RegExp(`\\b${name}(?: \\?\\?| =) ${value}`, 'g'))]
  return uses.map(([, text]) => {
    const said = (text as string).trim()
    const constant = /^[A-Z_]+$/.test(said)
      ? new RegExp(`const ${said}\\b[^=]*= ([^\\n]+)`).exec(code)?.[1]
      : said
    const plain = (constant ?? said).replace(/(\d)_(?=\d)/g, '$1').replaceAll("'", '"')
    const isLiteral = /^(\d[\d\s*.]*|"[^"]*"|true|false|\[["\w\s,]*\])$/.test(plain)
    return JSON.stringify(isLiteral ? Function(`return ${plain}`)() : plain)
  })
}
