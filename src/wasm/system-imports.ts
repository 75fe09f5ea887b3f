/** Signatures of the system interfaces' functions: `i` is i32, `I` is i64, `F` is f64; the result follows `>`. */

const WASI_TYPES: Readonly<Record<string, string>> = {
  args_get: 'ii>i',
  args_sizes_get: 'ii>i',
  environ_get: 'ii>i',
  environ_sizes_get: 'ii>i',
  clock_res_get: 'ii>i',
  clock_time_get: 'iIi>i',
  fd_advise: 'iIIi>i',
  fd_allocate: 'iII>i',
  fd_close: 'i>i',
  fd_datasync: 'i>i',
  fd_fdstat_get: 'ii>i',
  fd_fdstat_set_flags: 'ii>i',
  fd_fdstat_set_rights: 'iII>i',
  fd_filestat_get: 'ii>i',
  fd_filestat_set_size: 'iI>i',
  fd_filestat_set_times: 'iIIi>i',
  fd_pread: 'iiiIi>i',
  fd_prestat_get: 'ii>i',
  fd_prestat_dir_name: 'iii>i',
  fd_pwrite: 'iiiIi>i',
  fd_read: 'iiii>i',
  fd_readdir: 'iiiIi>i',
  fd_renumber: 'ii>i',
  fd_seek: 'iIii>i',
  fd_sync: 'i>i',
  fd_tell: 'ii>i',
  fd_write: 'iiii>i',
  path_create_directory: 'iii>i',
  path_filestat_get: 'iiiii>i',
  path_filestat_set_times: 'iiiiIIi>i',
  path_link: 'iiiiiii>i',
  path_open: 'iiiiiIIii>i',
  path_readlink: 'iiiiii>i',
  path_remove_directory: 'iii>i',
  path_rename: 'iiiiii>i',
  path_symlink: 'iiiii>i',
  path_unlink_file: 'iii>i',
  poll_oneoff: 'iiii>i',
  proc_exit: 'i>',
  proc_raise: 'i>i',
  random_get: 'ii>i',
  sched_yield: '>i',
  sock_accept: 'iii>i',
  sock_recv: 'iiiiii>i',
  sock_send: 'iiiii>i',
  sock_shutdown: 'ii>i',
}

const EXTISM_TYPES: Readonly<Record<string, string>> = {
  alloc: 'I>I',
  free: 'I>',
  length: 'I>I',
  length_unsafe: 'I>I',
  load_u8: 'I>i',
  load_u64: 'I>I',
  store_u8: 'Ii>',
  store_u64: 'II>',
  input_length: '>I',
  input_offset: '>I',
  input_load_u8: 'I>i',
  input_load_u64: 'I>I',
  output_set: 'II>',
  error_set: 'I>',
  error_get: '>I',
  reset: '>',
  config_get: 'I>I',
  var_get: 'I>I',
  var_set: 'II>',
  http_request: 'II>I',
  http_status_code: '>i',
  http_headers: '>I',
  get_log_level: '>i',
  log_trace: 'I>',
  log_debug: 'I>',
  log_info: 'I>',
  log_warn: 'I>',
  log_error: 'I>',
}

/** Functions that AssemblyScript's compiler imports by default. */
const ASSEMBLYSCRIPT_TYPES: Readonly<Record<string, string>> = {
  abort: 'iiii>',
  trace: 'iiFFFFF>',
  'console.log': 'i>',
  seed: '>F',
}

/** The module that WASI programs import. */
const WASI = 'wasi_snapshot_preview1'
/** The module that Extism plug-ins import. */
export const EXTISM = 'extism:host/env'

const TYPES: Readonly<Record<string, Readonly<Record<string, string>>>> = {
  [WASI]: WASI_TYPES,
  [EXTISM]: EXTISM_TYPES,
  env: ASSEMBLYSCRIPT_TYPES,
}

const LETTER: Readonly<Record<number, string>> = { 127: 'i', 126: 'I', 124: 'F' }
const lettersOf = (types: readonly number[]): string => types.map((type) => LETTER[type] ?? '?').join('')

/** Whether a system interface has this function with this type; `undefined` if the module is not a system interface. */
export function systemImport(
  module: string,
  name: string,
  type: { readonly params: readonly number[]; readonly results: readonly number[] } | undefined,
): 'fits' | 'other-type' | 'unknown' | undefined {
  const known = Object.hasOwn(TYPES, module) ? TYPES[module] : undefined
  if (known === undefined) return undefined
  const wanted = Object.hasOwn(known, name) ? known[name] : undefined
  if (wanted === undefined) return 'unknown'
  return type && `${lettersOf(type.params)}>${lettersOf(type.results)}` === wanted ? 'fits' : 'other-type'
}
