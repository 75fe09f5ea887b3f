// Generated from guest/protocol.json by scripts/protocol.mjs; do not edit.

/** Sent in the ready frame; the host refuses an agent of another version. Increase it when anything in this file changes meaning. */
export const PROTOCOL_VERSION = '10'

/** Letters of the frames that the agent sends. */
export const AGENT_FRAMES = {
  /** text: setup failed, nothing ran */
  error: 'E',
  /** text: the effective layers, one `key:\tvalue` per line */
  ready: 'R',
  /** guarantee, NUL, details */
  violation: 'V',
  /** text: the limit that stopped the command */
  limit: 'L',
  /** 2 bytes: 0 for exited or 1 for signaled, then the exit code or signal number */
  exit: 'X',
  /** pid (4 bytes) for a command, empty for a stream */
  started: 'A',
  /** text: why the command or the stream could not start */
  refused: 'F',
  /** bytes of standard output */
  stdout: 'O',
  /** bytes of standard error */
  stderr: 'P',
  /** an access kind and a path: what a traced command accessed */
  use: 'M',
  /** a stream to the proxy; the id of the isolated command that opened it (4 bytes), or empty */
  tunnel: 'N',
  /** empty: a container is up and waits for its configuration */
  waiting: 'H',
  /** empty: the machine has applied its new identity */
  renewed: 'J',
  /** token and pid (4 bytes each), then the words of a command that `sudo` asks to start, each ends in NUL */
  sudo: 's',
  /** bytes of a stream */
  data: 'D',
  /** empty: no more bytes from this side */
  end: 'Q',
  /** empty: the stream is closed in both directions */
  drop: 'U',
  /** 4 bytes: how many more bytes may be sent */
  window: 'W',
} as const

/** Letters of the frames that the host sends. */
export const HOST_FRAMES = {
  /** empty: the command may start */
  go: 'G',
  /** signal number (4 bytes), sent to the process group */
  signal: 'S',
  /** empty: kill the command and all its descendants */
  kill: 'K',
  /** 1 byte: 1 stops every process, 0 continues them */
  freeze: 'B',
  /** fields of a command, each ends in NUL */
  command: 'C',
  /** bytes of standard input; an empty payload closes it */
  input: 'I',
  /** columns and rows (2 bytes each) */
  resize: 'Z',
  /** port (2 bytes) on the sandbox's loopback to open a stream to; the id of the isolated command whose loopback it is (4 bytes), or nothing */
  connect: 'T',
  /** during setup: the configuration */
  configure: 'Y',
  /** during setup: the seccomp filter */
  filter: 'f',
  /** during setup: `is` or `not`, path, device and inode of each mount */
  expect: 'e',
  /** to a virtual machine: seed, time and names; after every clone and every resume */
  identity: 'i',
  /** empty: the container ends and the machine waits for the next setup */
  leave: 'l',
  /** 4 bytes: milliseconds after which the sandbox ends itself unless the lease is renewed; 0: without end */
  lease: 't',
  /** token (4 bytes), then 1 byte: 1 starts what `sudo` asked for, 0 refuses it */
  verdict: 'a',
  /** bytes of a stream */
  data: 'D',
  /** empty: no more bytes from this side */
  end: 'Q',
  /** empty: the stream is closed in both directions */
  drop: 'U',
  /** 4 bytes: how many more bytes may be sent */
  window: 'W',
} as const

/** bytes before the payload of a frame */
export const FRAME_HEADER = 9
/** longest payload of a frame from the agent that is not plain bytes */
export const MAX_TEXT = 4096
/** longest payload of a frame of plain bytes from the agent */
export const MAX_BYTES = 65_536
/** bytes of a command's output or of a stream that the agent may send before the host extends the window */
export const WINDOW = 262_144
/** bytes of a stream that the host may send before the agent extends the window */
export const STREAM_WINDOW = 1_048_576
/** bytes of standard input that the host may send before the agent extends the window */
export const INPUT_WINDOW = 262_144
/** users and groups of a sandbox with a root user */
export const ID_COUNT = 65_536
/** the user and group `user` in a sandbox with a root user */
export const USER_UID = 1000
/** the sandbox's user and group as the virtual machine's kernel sees them */
export const SANDBOX_UID = 100_000
/** where the agent listens in a machine without a virtio serial port */
export const VSOCK_PORT = 1024
/** prefix of the environment variables with the launch vector */
export const LAUNCH_VARIABLE = 'RINGFENCE_LAUNCH'
/** how argv[0] of a started bubblewrap or hypervisor begins */
export const OWNER_PREFIX = 'ringfence-bwrap'
/** key in the ready frame: the protocol's version */
export const READY_VERSION = 'Version'
/** key in the ready frame: Landlock's ABI, 0 for none */
export const READY_LANDLOCK = 'Landlock'
/** key in the ready frame: 1 when changes of names are supervised */
export const READY_GUARD = 'Guard'
/** key in the ready frame: the host id of the sandbox's root user, where it has one */
export const READY_IDS = 'Ids'
/** where the launcher assembles a writable root, in a mount namespace of its own */
export const STAGE = '/run/ringfence/stage'
/** the socket at which PID 1 of a container receives its writable root */
export const HANDOVER_NAME = 'handover'
/** key in the ready frame: what the host called this machine */
export const READY_TOKEN = 'Token'
/** key in the ready frame: when the machine's files had been copied in, in ns */
export const READY_FILLED = 'Filled'

/** The agent's letters for access kinds. */
export const ACCESS_KINDS = {
  r: 'read',
  w: 'write',
  x: 'start',
} as const

/** The agent's letters for file kinds. */
export const FILE_KINDS = {
  f: 'file',
  d: 'dir',
  l: 'link',
  o: 'other',
} as const

/** The agent's letters for overlay kinds. */
export const OVERLAY_KINDS = {
  f: 'file',
  d: 'dir',
  l: 'link',
  o: 'other',
  w: 'whiteout',
} as const

/** The agent's letters for file changes. */
export const FILE_CHANGES = {
  c: 'create',
  d: 'remove',
  w: 'write',
  m: 'chmod',
  r: 'rename',
} as const

/** The agent's letters for tar types. */
export const TAR_TYPES = {
  S: 'same',
  U: 'unread',
  T: 'time',
} as const

/** Values of limit names that the agent reports. */
export const LIMIT_NAMES = ['memory', 'pids', 'disk'] as const

/** The launch vector: an operation, then its arguments, with how many arguments each takes. */
export const LAUNCH_OPERATIONS: Readonly<Record<string, number>> = {
  bwrap: 1, // PATH
  control: 1, // FD
  handover: 1, // FD
  contents: 1, // FD
  cgroup: 1, // DIRECTORY
  bind: 5, // ro|rw SOURCE DEVICE INODE TARGET
  arg: 1, // ARGUMENT
  file: 2, // TARGET TEXT
  'file-from-contents': 2, // TARGET LENGTH
  cover: 2, // TARGET TEXT
  filter: 1, // HEX
  init: 1, // FIELD
  user: 2, // UID GID
  ids: 4, // STORED FIRST COUNT LOCKS
  lower: 3, // SOURCE DEVICE INODE
  layer: 1, // TARGET
  disk: 3, // IMAGE DEVICE INODE
  mount: 5, // ro|rw|stored SOURCE DEVICE INODE TARGET
  own: 1, // TARGET
  temporary: 2, // TARGET OPTIONS
}

/** A command, as a frame or as part of the configuration, with how many arguments each takes. */
export const COMMAND_FIELDS: Readonly<Record<string, number>> = {
  argv: 1, // WORD
  env: 1, // NAME=VALUE
  rlimit: 2, // NAME VALUE
  cwd: 1, // PATH
  builtin: 0,
  input: 0,
  'wait-for-start': 0,
  terminal: 2, // COLUMNS ROWS
  offline: 0,
  as: 1, // USER
  owner: 1, // USER
}

/** The configuration of an agent, besides the fields of a command, with how many arguments each takes. */
export const CONFIG_FIELDS: Readonly<Record<string, number>> = {
  readonly: 1, // PATH
  mask: 3, // PATH DEVICE INODE
  hide: 1, // PATH
  nested: 3, // STAGED TARGET ro|rw
  overlay: 3, // ORIGINAL CHANGES TARGET
  writable: 1, // PATH
  supervise: 1, // PATH
  private: 1, // PATH
  'host-mount': 1, // PATH
  'host-socket': 1, // PATH
  'protect-root': 1, // NAMES
  'protect-inner': 1, // PATTERNS
  'protect-name': 1, // PATTERNS
  'protect-except': 1, // NAMES
  'protect-path': 1, // PATH
  user: 2, // UID GID
  'root-user': 0,
  'range-lock': 1, // FD
  'wait-for-go': 0,
  persistent: 0,
  isolate: 0,
  prefork: 0,
  'free-bind': 0,
  'shared-network': 0,
  trace: 0,
  'proxy-port': 1, // PORT
  handover: 1, // FD
  'report-network': 1, // GUARANTEE
  'whole-file-system': 0,
  memory: 1, // BYTES
  'memory-shared': 0,
  'socket-memory': 1, // BYTES
  disk: 1, // BYTES
  processes: 1, // COUNT
  'check-interval': 1, // MILLISECONDS
}

/** What `/init` of a virtual machine is told in the expect frame, with how many arguments each takes. */
export const MACHINE_FIELDS: Readonly<Record<string, number>> = {
  disk: 0,
  inputs: 0,
  user: 2, // UID GID
  limit: 2, // CGROUP_FILE VALUE
  file: 2, // TARGET TEXT
  tmp: 1, // SIZE
  mount: 4, // dir|file|image ro|rw TARGET NAME
  root: 1, // FIRST_ID
  'first-file': 2, // TARGET TEXT
  own: 1, // TARGET
}

/** What each mount point of a container must and must not show, in the expect frame, with how many arguments each takes. */
export const EXPECTED_MOUNTS: Readonly<Record<string, number>> = {
  is: 3, // PATH DEVICE INODE
  not: 3, // PATH DEVICE INODE
  root: 1, // SOCKET
}

/** What distinguishes a clone of a virtual machine, in the identity frame, with how many arguments each takes. */
export const IDENTITY_FIELDS: Readonly<Record<string, number>> = {
  seed: 1, // HEX
  time: 1, // NANOSECONDS
  token: 1, // TEXT
  'machine-id': 1, // HEX
  hostname: 1, // NAME
}

/** Operations on files that the agent implements itself (`builtin`), with how many arguments each takes. */
export const FILE_OPERATIONS: Readonly<Record<string, number>> = {
  read: 3, // PATH OFFSET LENGTH
  write: 2, // PATH ATTRIBUTES
  stat: 1, // PATH
  list: 2, // PATH DEPTH
  mkdir: 1, // PATH
  move: 2, // FROM TO
  remove: 1, // PATH
  watch: 2, // PATH RECURSIVE
  pack: 1, // PATH
  'pack-whole': 1, // PATH
  changes: 2, // PATH SINCE
  unpack: 1, // PATH
  sync: 1, // PATH
}
