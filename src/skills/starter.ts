import { SandboxError } from '../model/errors.ts'

/** The files of a new skill, and the commands that build and run it. */
export type Starter = {
  readonly files: Readonly<Record<string, string>>
  /** The command that makes the entry; `undefined` if the entry is the source. */
  readonly build: string | undefined
}

type Language = {
  readonly runtime: 'wasm' | 'python' | 'node'
  readonly entry: string
  readonly source: string
  readonly code: string
  readonly build?: string
  /** Files besides the source. */
  readonly more?: Readonly<Record<string, string>>
}

const C = `/* Counts the words of its input. An ordinary program: input comes on standard input, the answer is what it prints. */
#include <ctype.h>
#include <stdio.h>

int main(void) {
  long words = 0;
  int inside = 0;
  for (int c; (c = getchar()) != EOF;) {
    if (isspace(c)) inside = 0;
    else if (!inside) inside = 1, words++;
  }
  printf("{\\"words\\":%ld}\\n", words);
  return 0;
}
`

const RUST = `// Counts the words of its input. An ordinary program: input comes on standard input, the answer is what it prints.
use std::io::Read;

fn main() {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).expect("input is text");
    println!("{{\\"words\\":{}}}", text.split_whitespace().count());
}
`

const ASSEMBLYSCRIPT = `// Adds two numbers. The input is a list of numbers, one for each parameter; the answer is a number.
export function run(a: i32, b: i32): i32 {
  return a + b
}
`

const PYTHON = `"""Counts the words of a text. The input is JSON on standard input; the answer is the JSON that it prints."""
import json
import sys

text = json.load(sys.stdin)
print(json.dumps({"words": len(str(text).split())}))
`

const NODE = `// Counts the words of a text. The input is JSON on standard input; the answer is the JSON that it prints.
import { readFileSync } from 'node:fs'

const text = String(JSON.parse(readFileSync(0, 'utf8')))
console.log(JSON.stringify({ words: text.split(/\\s+/).filter((word) => word !== '').length }))
`

const JAVASCRIPT = `// Counts the words of a text. The input is JSON; the answer is the JSON that it returns.
export function execute(input) {
  const text = String(JSON.parse(input))
  return JSON.stringify({ words: text.split(/\\s+/).filter((word) => word !== '').length })
}
`

const WIT = `package local:skill;

// What Ringfence calls: JSON in, JSON out.
world skill {
  export execute: func(input: string) -> string;
}
`

const LANGUAGES: Readonly<Record<string, Language>> = {
  c: {
    runtime: 'wasm',
    entry: 'main.wasm',
    source: 'main.c',
    code: C,
    build: 'clang --target=wasm32-wasi -O2 -o main.wasm main.c',
  },
  rust: {
    runtime: 'wasm',
    entry: 'main.wasm',
    source: 'main.rs',
    code: RUST,
    build: 'rustc --target wasm32-wasi -O -C strip=symbols -o main.wasm main.rs',
  },
  assemblyscript: {
    runtime: 'wasm',
    entry: 'main.wasm',
    source: 'main.ts',
    code: ASSEMBLYSCRIPT,
    build: 'npx -p assemblyscript asc main.ts -O -o main.wasm',
  },
  'javascript-wasm': {
    runtime: 'wasm',
    entry: 'main.wasm',
    source: 'main.js',
    code: JAVASCRIPT,
    build:
      'npx -p @bytecodealliance/componentize-js -p @bytecodealliance/preview2-shim@0.17 componentize-js main.js --wit skill.wit -o main.wasm',
    more: { 'skill.wit': WIT },
  },
  python: { runtime: 'python', entry: 'main.py', source: 'main.py', code: PYTHON },
  node: { runtime: 'node', entry: 'main.mjs', source: 'main.mjs', code: NODE },
}

/** The languages that a new skill can be written in. */
export const STARTER_LANGUAGES: readonly string[] = Object.keys(LANGUAGES)

/** What to say about languages that people ask for and that cannot be offered. */
const NOT_OFFERED: Readonly<Record<string, string>> = {
  javascript: 'use `node`, or `javascript-wasm` for WebAssembly',
  typescript: 'use `assemblyscript`, or `node` with compiled JavaScript',
}

/** The files of a new skill in a language. */
export function starterOf(name: string, language: string): Starter {
  const known = Object.hasOwn(LANGUAGES, language) ? LANGUAGES[language] : undefined
  if (!known) {
    const hint = Object.hasOwn(NOT_OFFERED, language) ? NOT_OFFERED[language] : undefined
    throw new SandboxError('invalid-input', `no template for the language \`${language}\``, {
      hint: hint ?? `one of ${STARTER_LANGUAGES.join(', ')}`,
    })
  }
  const { runtime, entry, source, code, build, more } = known
  const manifest = `[skill]
name = "${name}"
version = "0.1.0"
description = ""

[runtime]
type = "${runtime}"
entry = "${entry}"

# What the skill may use, all of it refused by default:
# [capabilities]
# file_read = ["data/**"]
# file_write = ["reports/*"]
# network = ["api.example.com:443"]
`
  return { files: { 'skill.toml': manifest, [source]: code, ...more }, build }
}
