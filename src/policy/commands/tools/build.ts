import { runText, touch } from '../effects.ts'
import { asked, boxed, unseen } from '../finding.ts'
import { runFile } from '../run-file.ts'
import { UNKNOWN } from '../shell/scope.ts'
import type { Call, Handler } from '../walk.ts'
import { tools } from './tool.ts'

/** Options that make a compiler start another program or load code. */
const COMPILER_LOADS =
  /^(-wrapper|-fplugin=.*|-specs(=.*)?|--specs=.*|-B.+|-fuse-ld=.*\/.*|@.+|-Xclang|-load)$/

const compiler: Handler = (call) => {
  const { args, node } = call
  for (const [index, arg] of args.entries()) {
    if (arg === '-wrapper') runText(call, (args[index + 1] ?? '').replaceAll(',', ' '))
    if (COMPILER_LOADS.test(arg))
      node.findings.push(asked('build/compiler', `\`${arg}\` starts or loads other code`))
    const out = arg === '-o' ? args[index + 1] : /^-o(.+)/.exec(arg)?.[1]
    if (out !== undefined) touch(call, out, 'write')
    else if (/^([~/]|\.\.)/.test(arg) && args[index - 1] !== '-o') touch(call, arg, 'read')
  }
  return UNKNOWN
}

const rustc: Handler = (call) => {
  const { args, node } = call
  for (const [index, arg] of args.entries()) {
    const setting =
      arg === '-C' || arg === '--codegen' ? (args[index + 1] ?? '') : arg.replace(/^-C|^--codegen=/, '')
    if (/^(linker|link-args?|ar)=/.test(setting) && !/=(clang|gcc|cc|lld|ld|mold|rust-lld)$/.test(setting))
      node.findings.push(unseen('build/linker', 'names a program that the compiler starts'))
    if (arg === '-o') touch(call, args[index + 1] ?? '', 'write')
  }
  return UNKNOWN
}

/** Properties and options of JVM tools that start programs or load code. */
const jvm: Handler = (call) => {
  const { args, node } = call
  node.findings.push(boxed('build/jvm', 'runs build code'))
  for (const [index, arg] of args.entries()) {
    if (
      /^-D(exec\.|maven\.ext|org\.gradle\.jvmargs|java\.security\.manager)/.test(arg) ||
      /^exec:(exec|java)/.test(arg)
    )
      node.findings.push(asked('build/exec', `\`${arg.slice(0, 40)}\` starts a program`))
    const script =
      /^(?:--init-script|-I|--build-file|-b|--settings-file|-f|--file|-s|--settings)(?:=(.*))?$/.exec(arg)
    if (script) runFile(call, script[1] ?? args[index + 1] ?? '', 'unknown')
  }
  return UNKNOWN
}

/** `swipl -g goal`, `ctags --options=file`: code from the command line or from a settings file. */
const goals: Handler = (call) => {
  for (const [index, arg] of call.args.entries())
    if (/^(-g|-t|--goal)$/.test(arg) && /shell|process|delete|open/.test(call.args[index + 1] ?? ''))
      call.node.findings.push(unseen('code/spawn', 'code that starts other programs'))
  const file = call.args.find((arg) => /\.(pl|pro)$/.test(arg))
  if (file !== undefined) runFile(call, file, 'prolog')
  return UNKNOWN
}

/** Reads a settings file that can start programs. */
const settings =
  (...names: readonly string[]): Handler =>
  (call: Call) => {
    for (const [index, arg] of call.args.entries()) {
      const [name = '', value] = arg.split(/=(.*)/s)
      if (names.includes(name)) runFile(call, value ?? call.args[index + 1] ?? '', 'unknown')
    }
    return undefined
  }

/** Settings or packages that affect all of the user's projects. */
const forEveryProject =
  (sub: RegExp, option: RegExp): Handler =>
  (call) => {
    if (sub.test(call.args[0] ?? '') && call.args.slice(1).some((arg) => option.test(arg)))
      call.node.findings.push(asked('packages/settings', 'changes every project of this user'))
    for (const arg of call.args) if (/^[~/]/.test(arg)) touch(call, arg, 'write')
    return UNKNOWN
  }

/** Compilers and build tools: the code they build is workspace code; programs they are told to start are judged. */
export const BUILD: Readonly<Record<string, Handler>> = {
  ...Object.fromEntries(
    'gcc g++ cc c++ clang clang++ gfortran gdc tcc'.split(' ').map((name) => [name, compiler]),
  ),
  rustc,
  ...Object.fromEntries('mvn mvnd mvnw gradle gradlew ant sbt'.split(' ').map((name) => [name, jvm])),
  swipl: goals,
  prolog: goals,
  gprolog: goals,
  ninja: settings('-f'),
  'run-parts': (call) => {
    runFile(call, call.args.find((arg) => arg[0] !== '-') ?? '', 'unknown')
    return UNKNOWN
  },
  composer: forEveryProject(/^global$/, /./),
  ctags: settings('--options', '-options', '--optlib-dir'),
  'pre-commit': (call) => {
    if (call.args[0] === 'try-repo')
      call.node.findings.push(asked('packages/source', 'runs code from another repository'))
    if (/^(install|init-templatedir)$/.test(call.args[0] ?? ''))
      call.node.findings.push(asked('protect/soft', 'puts hooks into the repository'))
    return UNKNOWN
  },
  ...tools({
    csplit: {
      short: 'bfnk',
      long: 'suffix-format prefix digits',
      effects: { '-f': 'write', '--prefix': 'write' },
      also: (call, { operands }) => {
        touch(call, operands[0] ?? '', 'read')
        call.node.findings.push(boxed('files/split', 'writes the parts of a file'))
      },
    },
  }),
}
