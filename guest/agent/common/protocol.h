/* Generated from guest/protocol.json by scripts/protocol.mjs; do not edit. */
/* clang-format off */
#ifndef RINGFENCE_PROTOCOL_H
#define RINGFENCE_PROTOCOL_H

/* Sent in the ready frame; the host refuses an agent of another version. Increase it when anything in this file changes meaning. */
enum { PROTOCOL_VERSION = 10 };

/* One frame is a letter (1 byte), an id (4 bytes), a length (4 bytes) and the payload; numbers are little endian. The id names a command or a stream; 0 is the sandbox itself. */
enum frame_type {
  FRAME_ERROR = 'E', /* from the agent: text: setup failed, nothing ran */
  FRAME_READY = 'R', /* from the agent: text: the effective layers, one `key:\tvalue` per line */
  FRAME_VIOLATION = 'V', /* from the agent: guarantee, NUL, details */
  FRAME_LIMIT = 'L', /* from the agent: text: the limit that stopped the command */
  FRAME_EXIT = 'X', /* from the agent: 2 bytes: 0 for exited or 1 for signaled, then the exit code or signal number */
  FRAME_STARTED = 'A', /* from the agent: pid (4 bytes) for a command, empty for a stream */
  FRAME_REFUSED = 'F', /* from the agent: text: why the command or the stream could not start */
  FRAME_STDOUT = 'O', /* from the agent: bytes of standard output */
  FRAME_STDERR = 'P', /* from the agent: bytes of standard error */
  FRAME_USE = 'M', /* from the agent: an access kind and a path: what a traced command accessed */
  FRAME_TUNNEL = 'N', /* from the agent: a stream to the proxy; the id of the isolated command that opened it (4 bytes), or empty */
  FRAME_WAITING = 'H', /* from the agent: empty: a container is up and waits for its configuration */
  FRAME_RENEWED = 'J', /* from the agent: empty: the machine has applied its new identity */
  FRAME_SUDO = 's', /* from the agent: token and pid (4 bytes each), then the words of a command that `sudo` asks to start, each ends in NUL */
  FRAME_GO = 'G', /* from the host: empty: the command may start */
  FRAME_SIGNAL = 'S', /* from the host: signal number (4 bytes), sent to the process group */
  FRAME_KILL = 'K', /* from the host: empty: kill the command and all its descendants */
  FRAME_FREEZE = 'B', /* from the host: 1 byte: 1 stops every process, 0 continues them */
  FRAME_COMMAND = 'C', /* from the host: fields of a command, each ends in NUL */
  FRAME_INPUT = 'I', /* from the host: bytes of standard input; an empty payload closes it */
  FRAME_RESIZE = 'Z', /* from the host: columns and rows (2 bytes each) */
  FRAME_CONNECT = 'T', /* from the host: port (2 bytes) on the sandbox's loopback to open a stream to; the id of the isolated command whose loopback it is (4 bytes), or nothing */
  FRAME_CONFIGURE = 'Y', /* from the host: during setup: the configuration */
  FRAME_FILTER = 'f', /* from the host: during setup: the seccomp filter */
  FRAME_EXPECT = 'e', /* from the host: during setup: `is` or `not`, path, device and inode of each mount */
  FRAME_IDENTITY = 'i', /* from the host: to a virtual machine: seed, time and names; after every clone and every resume */
  FRAME_LEAVE = 'l', /* from the host: empty: the container ends and the machine waits for the next setup */
  FRAME_LEASE = 't', /* from the host: 4 bytes: milliseconds after which the sandbox ends itself unless the lease is renewed; 0: without end */
  FRAME_VERDICT = 'a', /* from the host: token (4 bytes), then 1 byte: 1 starts what `sudo` asked for, 0 refuses it */
  FRAME_DATA = 'D', /* both ways: bytes of a stream */
  FRAME_END = 'Q', /* both ways: empty: no more bytes from this side */
  FRAME_DROP = 'U', /* both ways: empty: the stream is closed in both directions */
  FRAME_WINDOW = 'W', /* both ways: 4 bytes: how many more bytes may be sent */
};

enum {
  FRAME_HEADER = 9, /* bytes before the payload of a frame */
  MAX_TEXT = 4096, /* longest payload of a frame from the agent that is not plain bytes */
  MAX_BYTES = 65536, /* longest payload of a frame of plain bytes from the agent */
  WINDOW = 262144, /* bytes of a command's output or of a stream that the agent may send before the host extends the window */
  STREAM_WINDOW = 1048576, /* bytes of a stream that the host may send before the agent extends the window */
  INPUT_WINDOW = 262144, /* bytes of standard input that the host may send before the agent extends the window */
  ID_COUNT = 65536, /* users and groups of a sandbox with a root user */
  USER_UID = 1000, /* the user and group `user` in a sandbox with a root user */
  SANDBOX_UID = 100000, /* the sandbox's user and group as the virtual machine's kernel sees them */
  VSOCK_PORT = 1024, /* where the agent listens in a machine without a virtio serial port */
  MAX_HOST_FRAME = 2097152, /* longest payload that a running agent accepts */
  MAX_SETUP_FRAME = 4194304, /* longest payload that an agent accepts during setup */
  MAX_FILE_CONTENTS = 67108864, /* longest file that the launcher reads from its contents descriptor */
  MAX_MOUNTS = 64, /* mounts that one virtual machine can have */
};

enum {
  EXIT_LEFT = 42, /* the container's agent ended because the host sent `leave` */
  EXIT_SETUP_FAILED = 125, /* the agent could not do its part */
  EXIT_NOT_EXECUTABLE = 126, /* the command was found and could not be executed */
  EXIT_NOT_FOUND = 127, /* the command was not found */
  EXIT_HOST_GONE = 137, /* the host closed the channel */
};

#define LAUNCH_VARIABLE "RINGFENCE_LAUNCH" /* prefix of the environment variables with the launch vector */
#define OWNER_PREFIX "ringfence-bwrap" /* how argv[0] of a started bubblewrap or hypervisor begins */
#define READY_VERSION "Version" /* key in the ready frame: the protocol's version */
#define READY_LANDLOCK "Landlock" /* key in the ready frame: Landlock's ABI, 0 for none */
#define READY_GUARD "Guard" /* key in the ready frame: 1 when changes of names are supervised */
#define READY_IDS "Ids" /* key in the ready frame: the host id of the sandbox's root user, where it has one */
#define STAGE "/run/ringfence/stage" /* where the launcher assembles a writable root, in a mount namespace of its own */
#define HANDOVER_NAME "handover" /* the socket at which PID 1 of a container receives its writable root */
#define READY_TOKEN "Token" /* key in the ready frame: what the host called this machine */
#define READY_FILLED "Filled" /* key in the ready frame: when the machine's files had been copied in, in ns */

enum { ACCESS_KIND_READ = 'r', ACCESS_KIND_WRITE = 'w', ACCESS_KIND_START = 'x' };
enum { FILE_KIND_FILE = 'f', FILE_KIND_DIR = 'd', FILE_KIND_LINK = 'l', FILE_KIND_OTHER = 'o' };
enum { OVERLAY_KIND_FILE = 'f', OVERLAY_KIND_DIR = 'd', OVERLAY_KIND_LINK = 'l', OVERLAY_KIND_OTHER = 'o', OVERLAY_KIND_WHITEOUT = 'w' };
enum { FILE_CHANGE_CREATE = 'c', FILE_CHANGE_REMOVE = 'd', FILE_CHANGE_WRITE = 'w', FILE_CHANGE_CHMOD = 'm', FILE_CHANGE_RENAME = 'r' };
enum { TAR_TYPE_SAME = 'S', TAR_TYPE_UNREAD = 'U', TAR_TYPE_TIME = 'T' };

#define LIMIT_NAME_MEMORY "memory"
#define LIMIT_NAME_PIDS "pids"
#define LIMIT_NAME_DISK "disk"

/* The launch vector: an operation, then its arguments: each row is a name and how many arguments follow it. */
#define LAUNCH_OPERATIONS(ROW) \
  ROW("bwrap", 1) /* PATH */ \
  ROW("control", 1) /* FD */ \
  ROW("handover", 1) /* FD */ \
  ROW("contents", 1) /* FD */ \
  ROW("cgroup", 1) /* DIRECTORY */ \
  ROW("bind", 5) /* ro|rw SOURCE DEVICE INODE TARGET */ \
  ROW("arg", 1) /* ARGUMENT */ \
  ROW("file", 2) /* TARGET TEXT */ \
  ROW("file-from-contents", 2) /* TARGET LENGTH */ \
  ROW("cover", 2) /* TARGET TEXT */ \
  ROW("filter", 1) /* HEX */ \
  ROW("init", 1) /* FIELD */ \
  ROW("user", 2) /* UID GID */ \
  ROW("ids", 4) /* STORED FIRST COUNT LOCKS */ \
  ROW("lower", 3) /* SOURCE DEVICE INODE */ \
  ROW("layer", 1) /* TARGET */ \
  ROW("disk", 3) /* IMAGE DEVICE INODE */ \
  ROW("mount", 5) /* ro|rw|stored SOURCE DEVICE INODE TARGET */ \
  ROW("own", 1) /* TARGET */ \
  ROW("temporary", 2) /* TARGET OPTIONS */

/* A command, as a frame or as part of the configuration: each row is a name and how many arguments follow it. */
#define COMMAND_FIELDS(ROW) \
  ROW("argv", 1) /* WORD */ \
  ROW("env", 1) /* NAME=VALUE */ \
  ROW("rlimit", 2) /* NAME VALUE */ \
  ROW("cwd", 1) /* PATH */ \
  ROW("builtin", 0) \
  ROW("input", 0) \
  ROW("wait-for-start", 0) \
  ROW("terminal", 2) /* COLUMNS ROWS */ \
  ROW("offline", 0) \
  ROW("as", 1) /* USER */ \
  ROW("owner", 1) /* USER */

/* The configuration of an agent, besides the fields of a command: each row is a name and how many arguments follow it. */
#define CONFIG_FIELDS(ROW) \
  ROW("readonly", 1) /* PATH */ \
  ROW("mask", 3) /* PATH DEVICE INODE */ \
  ROW("hide", 1) /* PATH */ \
  ROW("nested", 3) /* STAGED TARGET ro|rw */ \
  ROW("overlay", 3) /* ORIGINAL CHANGES TARGET */ \
  ROW("writable", 1) /* PATH */ \
  ROW("supervise", 1) /* PATH */ \
  ROW("private", 1) /* PATH */ \
  ROW("host-mount", 1) /* PATH */ \
  ROW("host-socket", 1) /* PATH */ \
  ROW("protect-root", 1) /* NAMES */ \
  ROW("protect-inner", 1) /* PATTERNS */ \
  ROW("protect-name", 1) /* PATTERNS */ \
  ROW("protect-except", 1) /* NAMES */ \
  ROW("protect-path", 1) /* PATH */ \
  ROW("user", 2) /* UID GID */ \
  ROW("root-user", 0) \
  ROW("range-lock", 1) /* FD */ \
  ROW("wait-for-go", 0) \
  ROW("persistent", 0) \
  ROW("isolate", 0) \
  ROW("prefork", 0) \
  ROW("free-bind", 0) \
  ROW("shared-network", 0) \
  ROW("trace", 0) \
  ROW("proxy-port", 1) /* PORT */ \
  ROW("handover", 1) /* FD */ \
  ROW("report-network", 1) /* GUARANTEE */ \
  ROW("whole-file-system", 0) \
  ROW("memory", 1) /* BYTES */ \
  ROW("memory-shared", 0) \
  ROW("socket-memory", 1) /* BYTES */ \
  ROW("disk", 1) /* BYTES */ \
  ROW("processes", 1) /* COUNT */ \
  ROW("check-interval", 1) /* MILLISECONDS */

/* What `/init` of a virtual machine is told in the expect frame: each row is a name and how many arguments follow it. */
#define MACHINE_FIELDS(ROW) \
  ROW("disk", 0) \
  ROW("inputs", 0) \
  ROW("user", 2) /* UID GID */ \
  ROW("limit", 2) /* CGROUP_FILE VALUE */ \
  ROW("file", 2) /* TARGET TEXT */ \
  ROW("tmp", 1) /* SIZE */ \
  ROW("mount", 4) /* dir|file|image ro|rw TARGET NAME */ \
  ROW("root", 1) /* FIRST_ID */ \
  ROW("first-file", 2) /* TARGET TEXT */ \
  ROW("own", 1) /* TARGET */

/* What each mount point of a container must and must not show, in the expect frame: each row is a name and how many arguments follow it. */
#define EXPECTED_MOUNTS(ROW) \
  ROW("is", 3) /* PATH DEVICE INODE */ \
  ROW("not", 3) /* PATH DEVICE INODE */ \
  ROW("root", 1) /* SOCKET */

/* What distinguishes a clone of a virtual machine, in the identity frame: each row is a name and how many arguments follow it. */
#define IDENTITY_FIELDS(ROW) \
  ROW("seed", 1) /* HEX */ \
  ROW("time", 1) /* NANOSECONDS */ \
  ROW("token", 1) /* TEXT */ \
  ROW("machine-id", 1) /* HEX */ \
  ROW("hostname", 1) /* NAME */

/* Operations on files that the agent implements itself (`builtin`): each row is a name and how many arguments follow it. */
#define FILE_OPERATIONS(ROW) \
  ROW("read", 3) /* PATH OFFSET LENGTH */ \
  ROW("write", 2) /* PATH ATTRIBUTES */ \
  ROW("stat", 1) /* PATH */ \
  ROW("list", 2) /* PATH DEPTH */ \
  ROW("mkdir", 1) /* PATH */ \
  ROW("move", 2) /* FROM TO */ \
  ROW("remove", 1) /* PATH */ \
  ROW("watch", 2) /* PATH RECURSIVE */ \
  ROW("pack", 1) /* PATH */ \
  ROW("pack-whole", 1) /* PATH */ \
  ROW("changes", 2) /* PATH SINCE */ \
  ROW("unpack", 1) /* PATH */ \
  ROW("sync", 1) /* PATH */

#endif
