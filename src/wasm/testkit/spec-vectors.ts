import { type WasmFunction, type WasmModule, wasmEngine } from '../engine.ts'
import type { FunctionType } from '../meter/types.ts'
import { buildModule, type Code, I64, op } from './module-builder.ts'
import { argumentOf, type SpecArgument } from './spec-values.ts'

/** JavaScript cannot pass vectors, so a small generated module makes each call. */

const V128 = 0x7b
/** Whether a function takes or returns a vector. */
export const hasVectors = ({ params, results }: FunctionType): boolean =>
  [...params, ...results].includes(V128)

const LANES: Readonly<Record<string, (view: DataView, lane: number, literal: string) => void>> = {
  i8x16: (view, lane, literal) => view.setInt8(lane, Number(BigInt.asIntN(8, integer(literal)))),
  i16x8: (view, lane, literal) => view.setInt16(lane * 2, Number(BigInt.asIntN(16, integer(literal))), true),
  i32x4: (view, lane, literal) => view.setInt32(lane * 4, Number(BigInt.asIntN(32, integer(literal))), true),
  i64x2: (view, lane, literal) => view.setBigInt64(lane * 8, BigInt.asIntN(64, integer(literal)), true),
  f32x4: (view, lane, literal) => view.setFloat32(lane * 4, float(literal), true),
  f64x2: (view, lane, literal) => view.setFloat64(lane * 8, float(literal), true),
}

const integer = (literal: string): bigint => argumentOf(['i64.const', literal])?.value as bigint
const float = (literal: string): number => argumentOf(['f64.const', literal])?.value as number

function constant([type, ...literal]: SpecArgument): readonly number[] | undefined {
  const bytes = new DataView(new ArrayBuffer(16))
  switch (type) {
    case 'v128.const': {
      const [shape = '', ...lanes] = literal
      for (const [lane, text] of lanes.entries()) LANES[shape]?.(bytes, lane, text)
      return [0xfd, 12, ...new Uint8Array(bytes.buffer)]
    }
    case 'i32.const':
      return op.i32(Number(BigInt.asIntN(32, integer(literal[0] ?? ''))))
    case 'f32.const':
      bytes.setFloat32(0, float(literal[0] ?? ''), true)
      return [0x43, ...new Uint8Array(bytes.buffer, 0, 4)]
    case 'f64.const':
      bytes.setFloat64(0, float(literal[0] ?? ''), true)
      return [0x44, ...new Uint8Array(bytes.buffer, 0, 8)]
    default:
      return undefined
  }
}

const CALLERS = new Map<string, WasmModule | undefined>()

/** The module that calls a function of this type with these arguments; the same for plain and metered runs. */
function callerOf(type: FunctionType, args: readonly SpecArgument[]): WasmModule | undefined {
  const key = JSON.stringify([type.params, type.results, args])
  if (CALLERS.has(key)) return CALLERS.get(key)
  const constants = args.map(constant)
  const [result] = type.results
  let module: WasmModule | undefined
  if (constants.every((bytes) => bytes !== undefined) && type.results.length <= 1) {
    const call: Code = [...constants, op.call(0)]
    const vector = result === V128
    const body = vector ? [...call, op.tee(0), [0xfd, 29, 0], op.get(0), [0xfd, 29, 1]] : call
    const results = vector ? [I64, I64] : type.results
    const imports = [{ module: 't', name: 'f', params: type.params, results: type.results }]
    const functions = [{ export: 'go', results, locals: vector ? [V128] : [], body }]
    module = new (wasmEngine().Module)(buildModule({ imports, functions }))
  }
  CALLERS.set(key, module)
  return module
}

/** A function without arguments that makes the call, or `undefined` if the call cannot be made. */
export function vectorCall(
  target: WasmFunction,
  type: FunctionType,
  args: readonly SpecArgument[],
): WasmFunction | undefined {
  const module = callerOf(type, args)
  if (module === undefined) return undefined
  return new (wasmEngine().Instance)(module, { t: { f: target } }).exports.go as WasmFunction
}
