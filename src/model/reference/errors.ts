import { type ErrorCode, SandboxError } from '../errors.ts'

/** What an error code means, and what its reader can do. */
export type ErrorEntry = {
  readonly code: string
  readonly family: string
  readonly http_status: number
  readonly exit_code: number
  readonly meaning: string
  readonly remedy: string
}

type Text = readonly [meaning: string, remedy: string]

const TEXTS: Readonly<Record<ErrorCode, Text>> = {
  'invalid-input': ['A field, option or argument is invalid.', 'Correct it; the message names it.'],
  'invalid-config': ['The configuration cannot be used.', 'Run `ringfence policy validate FILE`.'],
  'path-not-absolute': ['A path that must be absolute is relative.', 'Begin the path with `/` or `~/`.'],
  'no-command': ['No command was given.', 'Name a program, or a shell line with `-c`.'],
  'already-wrapped': [
    'The library was given a wrapped command, or a builder twice.',
    'Wrap each command once.',
  ],
  'sandbox-not-found': [
    'No such sandbox, or it belongs to another tenant.',
    'List them with `ringfence sandbox ls --all`.',
  ],
  'file-not-found': [
    'The file does not exist.',
    'Check the path; inside a sandbox it is a path of the sandbox.',
  ],
  'file-exists': ['There is already a file of that name.', 'Choose another name, or remove the file.'],
  'wrong-state': [
    'The object is in a state that does not permit this.',
    'Read its state; wait, resume or recreate it.',
  ],
  unauthenticated: [
    'The key or token is missing, wrong, revoked or expired.',
    'Send a valid key (`ringfence key create`).',
  ],
  forbidden: [
    'The key lacks the scope or the grant.',
    'Use a key with the scope, or a `[[tenant]]` that grants it.',
  ],
  'not-found': ['No such route or object.', 'Check the address; `/openapi.json` lists the routes.'],
  'method-not-allowed': ['The route exists, but not with this method.', 'See `/openapi.json`.'],
  conflict: ['The request contradicts the current state.', 'Read the object again, then repeat the request.'],
  'too-large': ['The request is larger than the server accepts.', 'Send less, or in parts.'],
  'wrong-host': ['The Host header names no name of this server.', 'Add the name to `[server] hosts`.'],
  'headers-too-large': ['The headers of the request are too large.', 'Send fewer or shorter headers.'],
  'too-many-requests': [
    'A rate, a queue or a quota is exhausted.',
    'Wait as `Retry-After` says, then repeat.',
  ],
  'forbidden-host-path': [
    'The policy does not permit to mount the path.',
    'Use another directory, or add it to `[policy] allowed_host_prefixes`.',
  ],
  'path-traversal': ['A path leaves its directory.', 'Use a path without `..`.'],
  'resource-limit-exceeded': [
    'More was requested than the policy permits.',
    'Request less, or raise `max_…` in `[policy]`.',
  ],
  'invalid-network-mode': [
    'The policy does not permit the network mode.',
    'Use another mode, or add it to `allowed_network_modes`.',
  ],
  'forbidden-command': [
    'The policy denies the command.',
    'Use another command; `ringfence check command` explains why.',
  ],
  'interactive-disabled': ['Terminals are switched off.', 'Set `[policy] allow_interactive = true`.'],
  'ssrf-blocked': [
    'The address is private, or a metadata service.',
    'Use a public address, or add it to `[network] allow_private`.',
  ],
  'capability-denied': [
    'A skill or secret was used without its grant.',
    'Grant the capability that the message names.',
  ],
  'approval-required': [
    'The command was not approved: rejected, or no answer in time.',
    'Ask an admin, or add a rule.',
  ],
  'skill-changed': [
    'A skill differs from what was approved.',
    'Inspect it again with `ringfence skill inspect`.',
  ],
  'skill-not-inspected': [
    '`[skills] require_inspection` is set, and nobody has inspected this skill.',
    'Inspect it with `ringfence skill inspect`.',
  ],
  'skill-untrusted': [
    'The signature of a skill does not fit its files, or is not from a trusted key although one is required.',
    'Run `ringfence skill verify`; trust the key of its signer with `ringfence skill trust`.',
  ],
  'skill-not-found': ['No such skill.', 'List them with `ringfence skill list`.'],
  'missing-guarantee': [
    'No backend on this host provides a guarantee that the request needs.',
    'Run `ringfence doctor`, choose another backend, or waive the guarantee.',
  ],
  'backend-unavailable': [
    'The backend does not work on this host.',
    'Run `ringfence doctor`; it says what is missing.',
  ],
  unsupported: [
    'The backend or platform does not support this.',
    'Use another backend, or leave the option out.',
  ],
  'resource-exhausted': [
    'Memory, disk space or another limit ran out.',
    'Free some, raise the limit, or do less at once.',
  ],
  timeout: ['The operation did not finish in time.', 'Repeat it, or allow more time.'],
  'fetch-failed': ['A request to another server failed.', 'Check the address and that server.'],
  'launch-failed': [
    'The sandbox could not be started.',
    'Repeat it; if it fails again, run `ringfence doctor`.',
  ],
  'trail-unwritable': [
    'The audit log cannot be written; nothing runs without its record.',
    'Check disk space and permissions of the state directory.',
  ],
  'store-unwritable': ['The database cannot be written.', 'Check the database, disk space and permissions.'],
  draining: ['The server is shutting down.', 'Repeat the request at another server, or later.'],
  unreachable: ['A server or a program of others does not answer.', 'Check that it runs and its address.'],
  internal: ['A defect of Ringfence.', 'Report it with the `request_id` and the log line.'],
}

/** Every error code, in the order of the table. */
export const errorReference = (): readonly ErrorEntry[] =>
  (Object.keys(TEXTS) as ErrorCode[]).map((code) => {
    const { family, httpStatus, exitCode } = new SandboxError(code, code)
    const [meaning, remedy] = TEXTS[code]
    return { code, family, http_status: httpStatus, exit_code: exitCode, meaning, remedy }
  })
