/*
 * The guest agent: one static program with four roles.
 *
 *   launch  runs on the host, just before bubblewrap: joins cgroups, opens the judged sources by inode,
 *           hands everything over by descriptor (so that no argument list shows a command or a secret).
 *   init    is PID 1 of the sandbox: finishes the mounts, drops every privilege, installs the fences, starts
 *           commands, decides on each change of the file system that the kernel passes up, reaps, reports.
 *   guest   is PID 1 of a container that an engine made: the same without the mounts, configured over the channel.
 *   /init   of a virtual machine: makes the machine ready and one container in it, with a copy of itself as its PID 1.
 *
 * Both speak to the host over one control channel in frames: type (1 byte), id (4 bytes), length (4 bytes), payload;
 * numbers are little endian. The id names a command or a stream; 0 is the sandbox itself.
 */
#ifndef RINGFENCE_AGENT_H
#define RINGFENCE_AGENT_H

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

/* Told in the ready frame; the host refuses an agent of another version. */
#define PROTOCOL_VERSION 3

/* A list of strings that grows. */
struct strings {
  char **items;
  size_t count;
  size_t room;
};

void strings_add(struct strings *list, const char *item);
/* Adds the NULL that exec wants. */
char **strings_vector(struct strings *list);
/* On the clock that nobody can set. */
int64_t monotonic_ms(void);

/* loop.c: waits for many descriptors at once. */
struct watch {
  int fd;
  uint32_t events;
  void (*ready)(struct watch *watch, uint32_t events);
  void *owner;
};

enum { READABLE = 1, WRITABLE = 4 }; /* as epoll has them */
void watch_start(struct watch *watch, int fd, uint32_t events, void (*ready)(struct watch *, uint32_t), void *owner);
/* No events: not even the end is noticed. */
void watch_set_events(struct watch *watch, uint32_t events);
void watch_close(struct watch *watch); /* closes it too */
_Noreturn void event_loop_run(int tick, void (*on_tick)(void));

/* wire.c: frames to and from the host. */
enum frame_type {
  FRAME_ERROR = 'E',     /* text: set-up failed, nothing ran */
  FRAME_READY = 'R',     /* text: the effective layers, one key=value a line */
  FRAME_VIOLATION = 'V', /* guarantee NUL details */
  FRAME_LIMIT = 'L',     /* text: the limit that stopped the command */
  FRAME_EXIT = 'X',      /* kind (0 exited, 1 signaled), code */
  FRAME_STARTED = 'A',   /* process number, or nothing for a stream */
  FRAME_REFUSED = 'F',   /* text: why the command or the stream could not start */
  FRAME_STDOUT = 'O',    /* bytes of standard output */
  FRAME_STDERR = 'P',    /* bytes of standard error */
  FRAME_USE = 'M',       /* r, w or x, and a path: what a watched command wanted */
  FRAME_TUNNEL = 'N',    /* the sandbox opened a stream to its proxy */
  FRAME_GO = 'G',        /* from the host: the command may start */
  FRAME_SIGNAL = 'S',    /* from the host: signal number, to the process group */
  FRAME_KILL = 'K',      /* from the host: end the command with everything that it started */
  FRAME_FREEZE = 'B',    /* from the host: 1, everything stands still; 0, it goes on */
  FRAME_COMMAND = 'C',   /* from the host: fields as in the configuration */
  FRAME_INPUT = 'I',     /* from the host: bytes of standard input; none is its end */
  FRAME_RESIZE = 'Z',    /* from the host: columns, rows (2 bytes each) */
  FRAME_CONNECT = 'T',   /* from the host: a stream to this port (2 bytes) of the sandbox's loopback */
  FRAME_DATA = 'D',      /* both ways: bytes of a stream */
  FRAME_END = 'Q',       /* both ways: no more bytes from this side */
  FRAME_DROP = 'U',      /* both ways: the stream is gone */
  FRAME_WINDOW = 'W',    /* both ways: so many more bytes (4 bytes) may be sent */
  FRAME_WAITING = 'H',   /* nothing: a container is up and waits for its configuration */
  FRAME_CONFIGURE = 'Y', /* from the host, to one that waits: the configuration */
  FRAME_FILTER = 'f',    /* from the host, to one that waits: the seccomp filter */
  FRAME_IDENTITY = 'i',  /* from the host, to a virtual machine: seed, time, names; after every clone and every rest */
  FRAME_RENEWED = 'J',   /* nothing: the machine is somebody of its own now */
  FRAME_LEAVE = 'l',     /* from the host: the container ends and the machine waits again */
  FRAME_EXPECT = 'e',    /* from the host, to one that waits: `is` or `not`, path, device, inode, of each mount */
};

/* How an agent ends that was sent away. */
enum { EXIT_LEFT = 42 };

/* What one side may send before the other answers with a window. */
enum { WINDOW = 256 * 1024, INPUT_WINDOW = 64 * 1024, STREAM_WINDOW = 1024 * 1024, CHUNK = 64 * 1024 };

extern int control_fd;
/* Where frames go when that is another descriptor; -1 when it is the same. */
extern int control_out;
/* Where a started child says why it failed; the channel is not its to write on. */
extern int child_socket;
void send_frame(enum frame_type type, uint32_t id, const void *payload, size_t length);
void send_number_frame(enum frame_type type, uint32_t id, uint32_t number);
/* The number that a payload holds. */
uint32_t payload_number(const char *payload, size_t length);
void report_violation(const char *guarantee, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Violations belong to the command that is being served. */
void set_violation_owner(uint32_t id, bool afresh);
/* Reports why the sandbox could not be set up and ends: nothing runs behind half a wall. */
_Noreturn void die(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* From now on frames are queued and never waited for. */
void channel_open(void (*on_frame)(enum frame_type type, uint32_t id, char *payload, size_t length), void (*on_room)(void));
bool channel_has_room(void);
/* Reads from a descriptor straight into a frame. As read(2). */
ssize_t channel_forward(enum frame_type type, uint32_t id, int fd, size_t most);

/* walk.c: path resolution that never follows what changed since it was looked at. */
#define MAX_SYMLINKS 40

/* Where a path leads: a parent directory with a last name, or (whole) one object with no name of its own. */
struct resolved_path {
  int parent; /* O_PATH, or -1 when whole */
  char name[NAME_MAX + 1];
  int fd;         /* O_PATH of the object itself, or -1 when it does not exist */
  bool must_be_dir;  /* the path ended in a slash */
  struct stat stat;  /* of found */
};

int open_no_symlinks(int root, const char *path, int flags);
/* Returns 0 or -errno. `caller` is the thread whose /proc/self the path means. */
enum last_component { FOLLOW_SYMLINK, NO_FOLLOW, PARENT_ONLY };
int resolve(struct resolved_path *resolved, pid_t caller, int dirfd, const char *path, enum last_component last);
void release_path(struct resolved_path *resolved);
bool is_procfs(int fd);
/* Whether a file of /proc tells of the caller's own process. */
bool is_proc_file_of_caller(int fd, pid_t caller);
/* The path of an open descriptor as the sandbox sees it; false when it has none. */
bool fd_path(int fd, char *buffer, size_t size);
void resolve_setup(void);
extern int proc_fd;

/* protect.c: which names may not be changed. */
struct protection {
  struct strings mounts; /* the writable mounts that the names count below */
  struct strings roots;
  struct strings inner;
  struct strings names;
  struct strings except;
  struct strings pinned; /* full paths: where a linked repository really lies */
  struct strings private_mounts;    /* mounts that nobody outside ever opens: what is made there is the sandbox's own affair */
};

extern struct protection protection;
/* Once, when all of it is known. */
void protection_index(void);
/* Each takes a full path; what is below no guarded mount is never protected. */
bool is_in_supervised_mount(const char *path);
bool is_protected(const char *path);
/* Moving or linking something to this path would carry protected names along. */
bool may_contain_protected(const char *path);
bool is_in_dependency_directory(const char *path);
/* judge.c: whether git would take the directory `path[0..length)` for a repository. */
bool is_git_directory(const char *path, size_t length);

/* fence.c: privileges, mounts, Landlock, seccomp. */
void mount_readonly(const char *path);
void hide_path(const char *path);
void mask_path(const char *path, const char *dev, const char *ino);
void move_mount_to(const char *staged, const char *target, const char *mode);
/* What is written below `target` lands in `changes/upper`; the original stays as it is. */
void mount_overlay(const char *original, const char *changes, const char *target);
void limit_user_namespaces(bool but_one);
void map_user(const char *uid, const char *gid);
void drop_privileges(void);
int landlock_restrict(struct strings *writable, bool files);
void seccomp_load(int fd);
void report_ready(int landlock, bool supervised);

/* connects.c: which guarantee a connection to elsewhere violates; none when nobody wants to know. */
extern const char *network_guarantee;

/* guard.c: decides on changes that the kernel passes up to PID 1. */
int supervision_install(void);
void supervision_handle(int listener);
/* A copy of us that waits for somebody in our stead; it is no command. */
pid_t fork_blocking_worker(void);
bool is_blocking_worker(pid_t pid);

/* usage.c: ceilings that the kernel does not hold by itself on this host. */
struct limits {
  uint64_t memory_bytes;
  uint64_t disk_bytes;
  uint64_t processes;
  bool shared_tmp; /* /tmp is the host's and not ours to count */
  int interval_ms; /* milliseconds between two looks */
};

extern struct limits limits;
/* False when it cannot be counted: then nobody may write it. */
bool disk_track_file(int fd, const struct stat *stat, bool created);
/* Bytes that no file's size shows. */
void disk_add_bytes(size_t length);
void disk_add_entry(void);
void disk_remove_entry(void);
/* Lets go of files that are removed and that nobody else holds. */
void disk_release_deleted(void);
/* Whether a command was stopped for the disk's ceiling and there is still no room. */
bool disk_is_full(void);
/* How many processes the kernel ended for want of memory, and did not let start, since we last asked. */
uint64_t new_oom_kills(void);
uint64_t new_refused_forks(void);
/* The name of the limit that is passed, or NULL. */
const char *exceeded_limit(void);

/* memory.c: what all processes take, and what no process shows. */
const char *exceeded_process_limit(void);
/* What programs share counts too; only where we see each call that makes it. */
extern bool count_shared_memory;
/* sockets.c: bytes that wait in sockets. Ready before the filter, which refuses the question. */
void socket_usage_setup(void);
uint64_t socket_usage(void);
/* Whether so much more memory that all can share may be had; it is counted from then on. */
bool reserve_shared_memory(size_t length);
/* memfiles.c: an open file in memory that is counted, or -errno. */
int counted_memfd_create(const char *name, unsigned flags);
uint64_t memfd_usage(void);
/* Releases the watched files that no process holds any more. */
void memfd_release_unused(void);
void memfd_release_all(void);
/* Nobody is left who could have shared anything. */
void memory_usage_reset(void);

/* command.c: one command, from its description to exec. */
struct command_spec {
  struct strings argv, env, rlimits;
  const char *cwd;
  bool builtin; /* argv names one of our own operations on files */
  bool input;   /* standard input stays open */
  bool wait_for_start;    /* waits for the host's word before it starts */
  unsigned short columns, rows; /* a terminal of this size, when not 0 */
};

void parse_command_field(struct command_spec *spec, const char *name, char **at, const char *end);
bool is_command_field(const char *name);
const char *next_field(char **at, const char *end);
/* In the child: becomes the command. What goes wrong before that is told on `socket`. */
_Noreturn void exec_command(struct command_spec *spec, int socket, bool supervised, bool terminal);
int receive_message(int socket, char *kind, char *text, size_t size, int *fd);
bool send_message(int socket, char kind, const void *text, size_t length, int fd);
/* files.c: operations on files that need no program inside the sandbox. Returns the exit code. */
int run_builtin(char **argv);
/* tree.c */
/* Of a process that is alive; -1 otherwise. */
pid_t live_parent_of(const char *pid);
void kill_tree(pid_t root);
void kill_orphans(bool (*is_known)(pid_t pid));

/* session.c: many commands (running.h) and streams over one channel. */
struct session {
  struct command_spec *defaults; /* environment, directory and ceilings that every command starts with */
  bool supervised;
  int signals;
  bool prefork;      /* the next keeper is made while nobody waits for it */
};
/* The one that is served. */
extern const struct session *session;
/* Where the kernel holds the commands apart from us: the group to enter, and what it counted there. -1: elsewhere. */
extern int commands_cgroup, memory_events, pids_events;
/* In a virtual machine: who does what needs rights, what the host called this machine, and when its files were there. */
extern int machine_helper;
extern const char *machine_token;
extern long long files_copied_at;
/* running.c: how many processes of ours stand beside the commands. */
size_t agent_processes(void);
void set_agent_processes(size_t count);
void raise_nofile_limit(struct strings *rlimits);
_Noreturn void serve_session(const struct session *session);
/* Both ends of a command's standard streams, and of the socket to its keeper. */
struct pipes {
  int in[2], out[2], errors[2], messages[2];
};
/* What the host asked for, on top of the defaults. Returns what is wrong with it, or NULL. */
const char *parse_command(struct command_spec *spec, char *payload, size_t length);
/* keeper.c: what stands above a command. */
bool open_stdio(const struct command_spec *spec, struct pipes *pipes);
_Noreturn void run_as_subreaper(struct command_spec *spec, struct pipes *pipes, bool ahead);
void close_all_except(int fd);
/* spare.c: a keeper that waits for its command. */
void prefork_create(void);
/* Gives the command to it. Returns who it is, or 0 when there is none that could take it. */
pid_t prefork_assign(struct pipes *pipes, const char *asked, size_t length);
void prefork_exited(pid_t pid);
pid_t prefork_pid(void);
/* stream.c: TCP streams between the host and the sandbox's loopback. */
void stream_listen(int port);
/* Gives the listening socket to the host, whose own connections they then are. */
void stream_pass_listener(int port, int to);
void stream_raise_loopback_gso(void);
void stream_connect(uint32_t id, unsigned port);
bool stream_handle_frame(enum frame_type type, uint32_t id, char *payload, size_t length);
void streams_resume(void);

/* review.c: lists what an overlay holds. */
int list_overlay_changes(const char *upper);

/* launch.c */
void die_with_parent(pid_t parent);
char *owner_process_name(pid_t owner);
_Noreturn void launch_main(void);
_Noreturn void init_main(int config, int filter);
/* The rest of it, where the mounts are there and the privileges gone. */
_Noreturn void serve_in_container(char *config, size_t length, int filter);
/* enter.c: joins control groups, becomes another user and starts a program. */
void join_cgroup(const char *directory);
_Noreturn void run_as_main(char **argv);
/* machine.c */
_Noreturn void machine_main(void);
/* guest.c */
int filter_to_memfd(const char *bytes, size_t length);
_Noreturn void container_main(void);
#ifdef RINGFENCE_TEST
_Noreturn void serve_unconfined(int config);
#endif

#endif
