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
int64_t milliseconds(void);

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
void watch_for(struct watch *watch, uint32_t events);
void watch_stop(struct watch *watch); /* closes it too */
_Noreturn void loop(int tick, void (*on_tick)(void));

/* wire.c: frames to and from the host. */
enum frame_type {
  FRAME_ERROR = 'E',     /* text: set-up failed, nothing ran */
  FRAME_READY = 'R',     /* text: the effective layers, one key=value a line */
  FRAME_VIOLATION = 'V', /* guarantee NUL details */
  FRAME_LIMIT = 'L',     /* text: the limit that stopped the command */
  FRAME_EXIT = 'X',      /* kind (0 exited, 1 signaled), code */
  FRAME_STARTED = 'A',   /* process number, or nothing for a stream */
  FRAME_REFUSED = 'F',   /* text: why the command or the stream could not start */
  FRAME_OUTPUT = 'O',    /* bytes of standard output */
  FRAME_ERRORS = 'P',    /* bytes of standard error */
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
enum { LEFT = 42 };

/* What one side may send before the other answers with a window. */
enum { WINDOW = 256 * 1024, INPUT_WINDOW = 64 * 1024, STREAM_WINDOW = 1024 * 1024, CHUNK = 64 * 1024 };

extern int control_fd;
/* Where frames go when that is another descriptor; -1 when it is the same. */
extern int control_out;
/* Where a started child says why it failed; the channel is not its to write on. */
extern int child_socket;
void report(enum frame_type type, uint32_t id, const void *payload, size_t length);
void report_number(enum frame_type type, uint32_t id, uint32_t number);
/* The number that a payload holds. */
uint32_t number_of(const char *payload, size_t length);
void report_violation(const char *guarantee, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Violations belong to the command that is being served. */
void violations_of(uint32_t id, bool afresh);
/* Reports why the sandbox could not be set up and ends: nothing runs behind half a wall. */
_Noreturn void die(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* From now on frames are queued and never waited for. */
void wire_open(void (*on_frame)(enum frame_type type, uint32_t id, char *payload, size_t length), void (*on_room)(void));
bool wire_has_room(void);
/* Reads from a descriptor straight into a frame. As read(2). */
ssize_t wire_pump(enum frame_type type, uint32_t id, int fd, size_t most);

/* walk.c: path resolution that never follows what changed since it was looked at. */
#define MAX_LINKS 40

/* Where a path leads: a parent directory with a last name, or (whole) one object with no name of its own. */
struct place {
  int parent; /* O_PATH, or -1 when whole */
  char name[NAME_MAX + 1];
  int found;         /* O_PATH of the object itself, or -1 when it does not exist */
  bool must_be_dir;  /* the path ended in a slash */
  struct stat stat;  /* of found */
};

int open_beneath(int root, const char *path, int flags);
/* Returns 0 or -errno. `caller` is the thread whose /proc/self the path means. */
enum last_name { FOLLOW_LINK, KEEP_LINK, DO_NOT_LOOK };
int resolve(struct place *place, pid_t caller, int dirfd, const char *path, enum last_name last);
void release(struct place *place);
bool is_on_proc(int fd);
/* Whether a file of /proc tells of the caller's own process. */
bool is_of_caller(int fd, pid_t caller);
/* The path of an open descriptor as the sandbox sees it; false when it has none. */
bool path_of(int fd, char *buffer, size_t size);
void walk_setup(void);
extern int proc_fd;

/* protect.c: which names may not be changed. */
struct protection {
  struct strings guarded; /* the writable mounts that the names count below */
  struct strings roots;
  struct strings inner;
  struct strings names;
  struct strings except;
  struct strings pinned; /* full paths: where a linked repository really lies */
  struct strings own;    /* mounts that nobody outside ever opens: what is made there is the sandbox's own affair */
};

extern struct protection protection;
/* Once, when all of it is known. */
void protection_ready(void);
/* Each takes a full path; what is below no guarded mount is never protected. */
bool is_guarded(const char *path);
bool is_protected(const char *path);
/* Moving or linking something to this path would carry protected names along. */
bool leads_to_protected(const char *path);
bool is_exempt(const char *path);
/* judge.c: whether git would take the directory `path[0..length)` for a repository. */
bool is_git_directory(const char *path, size_t length);

/* fence.c: privileges, mounts, Landlock, seccomp. */
void make_readonly(const char *path);
void hide_path(const char *path);
void mask_path(const char *path, const char *dev, const char *ino);
void move_mount_to(const char *staged, const char *target, const char *mode);
/* What is written below `target` lands in `changes/upper`; the original stays as it is. */
void mount_overlay(const char *original, const char *changes, const char *target);
void forbid_user_namespaces(bool but_one);
void become_user(const char *uid, const char *gid);
void drop_privileges(void);
int restrict_files(struct strings *writable, bool files);
void load_filter(int fd);
void describe_layers(int landlock, bool guarded);

/* connects.c: which guarantee a connection to elsewhere violates; none when nobody wants to know. */
extern const char *network_guarantee;

/* guard.c: decides on changes that the kernel passes up to PID 1. */
int guard_install(void);
void guard_serve(int listener);
/* A copy of us that waits for somebody in our stead; it is no command. */
pid_t fork_waiter(void);
bool is_waiter(pid_t pid);

/* usage.c: ceilings that the kernel does not hold by itself on this host. */
struct ceilings {
  uint64_t memory_bytes;
  uint64_t disk_bytes;
  uint64_t processes;
  bool shared_tmp; /* /tmp is the host's and not ours to count */
  int tick; /* milliseconds between two looks */
};

extern struct ceilings ceilings;
/* False when it cannot be counted: then nobody may write it. */
bool usage_note_write(int fd, const struct stat *stat, bool created);
/* Bytes that no file's size shows. */
void usage_note_bytes(size_t length);
void usage_note_entry(void);
void usage_note_removal(void);
/* Lets go of files that are removed and that nobody else holds. */
void usage_release(void);
/* Whether a command was stopped for the disk's ceiling and there is still no room. */
bool usage_is_full(void);
/* How many processes the kernel ended for want of memory, and did not let start, since we last asked. */
uint64_t usage_killed(void);
uint64_t usage_refused(void);
/* The name of the limit that is passed, or NULL. */
const char *usage_exceeded(void);

/* memory.c: what all processes take, and what no process shows. */
const char *load_exceeded(void);
/* What programs share counts too; only where we see each call that makes it. */
extern bool memory_shared;
/* sockets.c: bytes that wait in sockets. Ready before the filter, which refuses the question. */
void sockets_ready(void);
uint64_t sockets_used(void);
/* Whether so much more memory that all can share may be had; it is counted from then on. */
bool memory_share(size_t length);
/* memfiles.c: an open file in memory that is counted, or -errno. */
int memory_file_new(const char *name, unsigned flags);
uint64_t memory_files_used(void);
/* Releases the watched files that no process holds any more. */
void memory_files_release(void);
void memory_files_clear(void);
/* Nobody is left who could have shared anything. */
void memory_clear(void);

/* command.c: one command, from its description to exec. */
struct command_spec {
  struct strings argv, env, rlimits;
  const char *cwd;
  bool builtin; /* argv names one of our own operations on files */
  bool input;   /* standard input stays open */
  bool held;    /* waits for the host's word before it starts */
  unsigned short columns, rows; /* a terminal of this size, when not 0 */
};

void command_field(struct command_spec *spec, const char *name, char **at, const char *end);
bool is_command_field(const char *name);
const char *take_field(char **at, const char *end);
/* In the child: becomes the command. What goes wrong before that is told on `socket`. */
_Noreturn void run_command(struct command_spec *spec, int socket, bool guarded, bool terminal);
int receive_message(int socket, char *kind, char *text, size_t size, int *fd);
bool send_message(int socket, char kind, const void *text, size_t length, int fd);
/* files.c: operations on files that need no program inside the sandbox. Returns the exit code. */
int run_builtin(char **argv);
/* tree.c */
/* Of a process that is alive; -1 otherwise. */
pid_t parent_of(const char *pid);
void kill_tree(pid_t root);
void kill_strays(bool (*is_known)(pid_t pid));

/* session.c: many commands (running.h) and streams over one channel. */
struct session {
  struct command_spec *defaults; /* environment, directory and ceilings that every command starts with */
  bool guarded;
  int signals;
  bool ahead;      /* the next keeper is made while nobody waits for it */
};
/* The one that is served. */
extern const struct session *session;
/* Where the kernel holds the commands apart from us: the group to enter, and what it counted there. -1: elsewhere. */
extern int work_group, memory_events, pids_events;
/* In a virtual machine: who does what needs rights, what the host called this machine, and when its files were there. */
extern int session_helper;
extern const char *session_token;
extern long long session_filled;
/* running.c: how many processes of ours stand beside the commands. */
size_t keepers(void);
void keepers_are(size_t count);
void raise_descriptors(struct strings *rlimits);
_Noreturn void serve_session(const struct session *session);
/* Both ends of a command's standard streams, and of the socket to its keeper. */
struct ends {
  int in[2], out[2], errors[2], messages[2];
};
/* What the host asked for, on top of the defaults. Returns what is wrong with it, or NULL. */
const char *read_command(struct command_spec *spec, char *payload, size_t length);
/* keeper.c: what stands above a command. */
bool open_ends(const struct command_spec *spec, struct ends *ends);
_Noreturn void become_keeper(struct command_spec *spec, struct ends *ends, bool ahead);
void close_all_but(int fd);
/* spare.c: a keeper that waits for its command. */
void spare_make(void);
/* Gives the command to it. Returns who it is, or 0 when there is none that could take it. */
pid_t spare_take(struct ends *ends, const char *asked, size_t length);
void spare_ended(pid_t pid);
pid_t spare_keeper(void);
/* stream.c: TCP streams between the host and the sandbox's loopback. */
void stream_listen(int port);
/* Gives the listening socket to the host, whose own connections they then are. */
void stream_hand_over(int port, int to);
void stream_widen_loopback(void);
void stream_connect(uint32_t id, unsigned port);
bool stream_frame(enum frame_type type, uint32_t id, char *payload, size_t length);
void streams_have_room(void);

/* review.c: lists what an overlay holds. */
int list_changes(const char *upper);

/* launch.c */
void die_with_parent(pid_t parent);
char *owner_name(pid_t owner);
_Noreturn void launch(void);
_Noreturn void init(int config, int filter);
/* The rest of it, where the mounts are there and the privileges gone. */
_Noreturn void serve_inside(char *config, size_t length, int filter);
/* enter.c: joins control groups, becomes another user and starts a program. */
void join_group(const char *directory);
_Noreturn void enter(char **argv);
/* machine.c */
_Noreturn void machine_init(void);
/* guest.c */
int filter_of(const char *bytes, size_t length);
_Noreturn void guest(void);
#ifdef RINGFENCE_TEST
_Noreturn void serve_unfenced(int config);
#endif

#endif
