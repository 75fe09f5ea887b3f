import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { networkPolicyOf } from '../../src/policy/network/network.ts'
import { publicFetcher } from '../../src/wasm/host/fetch.ts'
import { WasmRunner } from '../../src/wasm/runner.ts'
import { WasmSandbox } from '../../src/wasm/sandbox.ts'
import { compileReactor, hasClang, withoutClang } from './compile-c.ts'

/** Extism plug-ins: the interface as its published headers declare it, from C. */

const runner = new WasmRunner({ threads: 2 })
const box = new WasmSandbox({ runner, epochDeadline: 100 })
let server: Server
let port = 0
const asked: string[] = []

beforeAll(async () => {
  server = createServer((request, response) => {
    asked.push(`${request.method} ${request.url} ${request.headers['x-own'] ?? ''}`)
    let body = ''
    request.on('data', (chunk) => {
      body += chunk
    })
    request.on('end', () => {
      response.writeHead(201, { 'x-kind': 'answer' })
      response.end(`got ${body}`)
    })
  })
  await new Promise<void>((done) => server.listen(0, '127.0.0.1', done))
  port = (server.address() as AddressInfo).port
})
afterAll(() => {
  runner.close()
  server.close()
})

const HEADER = `
#include <stdint.h>
#include <string.h>
#include <stdio.h>
#define ENV(name) __attribute__((import_module("extism:host/env"), import_name(#name)))
typedef uint64_t block;
ENV(input_length) extern uint64_t input_length(void);
ENV(input_load_u8) extern uint8_t input_load_u8(uint64_t at);
ENV(input_load_u64) extern uint64_t input_load_u64(uint64_t at);
ENV(alloc) extern block ext_alloc(uint64_t length);
ENV(free) extern void ext_free(block at);
ENV(length) extern uint64_t ext_length(block at);
ENV(load_u8) extern uint8_t load_u8(block at);
ENV(store_u8) extern void store_u8(block at, uint8_t value);
ENV(load_u64) extern uint64_t load_u64(block at);
ENV(store_u64) extern void store_u64(block at, uint64_t value);
ENV(output_set) extern void output_set(block at, uint64_t length);
ENV(error_set) extern void error_set(block at);
ENV(config_get) extern block config_get(block name);
ENV(var_get) extern block var_get(block name);
ENV(var_set) extern void var_set(block name, block value);
ENV(http_request) extern block http_request(block request, block body);
ENV(http_status_code) extern int32_t http_status_code(void);
ENV(log_info) extern void log_info(block text);
ENV(log_error) extern void log_error(block text);
static block put(const char *text) {
  uint64_t length = strlen(text);
  block at = ext_alloc(length);
  for (uint64_t i = 0; i < length; i++) store_u8(at + i, (uint8_t)text[i]);
  return at;
}
static void get(block at, char *text, uint64_t size) {
  uint64_t length = at ? ext_length(at) : 0;
  if (length > size - 1) length = size - 1;
  for (uint64_t i = 0; i < length; i++) text[i] = (char)load_u8(at + i);
  text[length] = 0;
}
static void out(const char *text) { output_set(put(text), strlen(text)); }
`
const plugin = (source: string, ...exports: readonly string[]): Uint8Array =>
  compileReactor(`${HEADER}${source}`, exports)

describe.skipIf(!hasClang)(`plug-ins${withoutClang}`, { timeout: 120_000 }, () => {
  it('get their input and set their output', async () => {
    const bytes = plugin(
      `int32_t count_vowels(void) {
        int count = 0;
        for (uint64_t i = 0; i < input_length(); i++) if (strchr("aeiouAEIOU", input_load_u8(i))) count++;
        char text[64];
        sprintf(text, "{\\"count\\":%d,\\"first\\":%u}", count, (unsigned)(input_load_u64(0) & 0xff));
        out(text);
        return 0;
      }`,
      'count_vowels',
    )
    const result = await box.run(bytes, 'hello plug-ins')
    expect(result).toMatchObject({ ok: { count: 4, first: 104 } })
    expect(await box.run(bytes, 'hello plug-ins', { call: 'count_vowels' })).toMatchObject({
      fuel: result.fuel,
    })
    expect(await box.run(bytes, 'x', { call: 'another' })).toMatchObject({ error: { code: 'abi-error' } })
    const none = plugin('int32_t takes(int32_t one) { output_set(0, 0); return one; }', 'takes')
    expect(await box.run(none, 'x')).toMatchObject({
      error: { message: 'the plug-in exports no function that takes no parameters' },
    })
  })

  it('fail with the error that they set', async () => {
    const bytes = plugin('int32_t fails(void) { error_set(put("not\\ntoday")); return 3; }', 'fails')
    expect(await box.run(bytes, '')).toMatchObject({ error: { code: 'guest-error', message: 'not today' } })
  })

  it('have blocks of memory, variables, configuration and a log', async () => {
    const bytes = plugin(
      `int32_t all(void) {
        char text[200], value[50], config[50], none[50];
        block a = ext_alloc(16);
        store_u64(a + 8, 0x1122334455667788);
        uint64_t word = load_u64(a + 8);
        ext_free(a);
        block again = ext_alloc(16);
        var_set(put("name"), put("kept"));
        get(var_get(put("name")), value, sizeof value);
        get(config_get(put("CITY")), config, sizeof config);
        get(config_get(put("ABSENT")), none, sizeof none);
        log_info(put("a line\\nand more"));
        sprintf(text, "{\\"value\\":\\"%s\\",\\"config\\":\\"%s\\",\\"none\\":\\"%s\\",\\"same\\":%d,\\"zero\\":%d,\\"var\\":%d}",
          value, config, none, again == a && word == 0x1122334455667788, load_u64(again + 8) == 0, var_get(put("other")) == 0);
        out(text);
        return 0;
      }`,
      'all',
    )
    const given = { env: { CITY: 'Bern' }, grants: ['EnvRead(CITY)'] }
    expect(await box.run(bytes, null, given)).toMatchObject({
      ok: { value: 'kept', config: 'Bern', none: '', same: 1, zero: 1, var: 1 },
      log: [{ level: 'info', text: 'a line and more' }],
    })
  })

  it('make requests with the same grants and checks as other skills', async () => {
    const bytes = plugin(
      `int32_t fetch(void) {
        char request[300], text[400], body[100];
        uint64_t i = 0;
        for (; i < input_length() && i < 299; i++) request[i] = (char)input_load_u8(i);
        request[i] = 0;
        get(http_request(put(request), put("abc")), body, sizeof body);
        sprintf(text, "{\\"status\\":%d,\\"body\\":\\"%s\\"}", http_status_code(), body);
        out(text);
        return 0;
      }`,
      'fetch',
    )
    const allowPrivate = ['127.0.0.1']
    const request = (url: string) => JSON.stringify({ url, method: 'POST', headers: { 'X-Own': 'yes' } })
    const go = (url: string, grants: readonly string[]) =>
      box.run(bytes, request(url), {
        grants,
        fetcher: publicFetcher({ allowPrivate }),
        network: networkPolicyOf({ allowPrivate }),
      })
    const here = `http://127.0.0.1:${port}/place`
    expect(await go(here, [`NetConnect(127.0.0.1:${port})`])).toMatchObject({
      ok: { status: 201, body: 'got abc' },
    })
    expect(asked).toEqual(['POST /place yes'])
    expect(await go(here, [])).toMatchObject({
      error: { code: 'capability-denied' },
      violations: [{ violationType: 'CapabilityDenied' }],
    })
    expect(await go('http://169.254.169.254/latest', ['NetConnect(*)'])).toMatchObject({
      error: { code: 'ssrf-blocked' },
      violations: [{ violationType: 'SsrfBlocked' }],
    })
    expect(asked.length).toBe(1)
  })

  it('cannot access memory outside their blocks, nor exhaust the host', async () => {
    const ends = async (body: string): Promise<unknown> => {
      const result = await new WasmSandbox({ runner, fuel: 3_000_000, epochDeadline: 100 }).run(
        plugin(`int32_t attack(void) { ${body}; return 0; }`, 'attack'),
        'in',
      )
      return 'error' in result ? result.error.code : result.ok
    }
    expect(await ends('load_u8(1ull << 40)')).toBe('abi-error')
    expect(await ends('store_u64(-8ull, 1)')).toBe('abi-error')
    expect(await ends('input_load_u64(0)')).toBe('abi-error')
    expect(await ends('output_set(8, 1ull << 33)')).toBe('abi-error')
    expect(await ends('for (;;) input_length(), load_u8(ext_alloc(1))')).toBe('resource-exhausted')
    expect(await ends('for (;;) ext_alloc(1 << 20)')).toBe('resource-exhausted')
    expect(await ends('if (ext_alloc(1ull << 50)) out("1"); else out("0")')).toBe('resource-exhausted')
  })

  it('need the name of a function if there are several', async () => {
    const bytes = plugin(
      'int32_t a(void) { out("1"); return 0; } int32_t b(void) { out("2"); return 0; }',
      'a',
      'b',
    )
    expect(await box.run(bytes, '')).toMatchObject({
      error: { code: 'abi-error', message: expect.stringMatching(/`a`, `b`/) },
    })
    expect(await box.run(bytes, '', { call: 'b' })).toMatchObject({ ok: 2 })
  })
})
