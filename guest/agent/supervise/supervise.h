/*
 * System calls that the kernel passes to PID 1 (seccomp user notification). PID 1 resolves the path of each, checks what
 * it leads to and makes the call itself on exactly that object.
 *
 * A function that emulates a call returns 0, -errno, or REPLIED when the caller already has its descriptor.
 */
#ifndef RINGFENCE_SUPERVISE_H
#define RINGFENCE_SUPERVISE_H

#include "supervise/resolve.h"

#include <linux/types.h>

/* filter.c: installs the filter in the current process, before exec. Returns the listener, or -1. */
int supervision_install(void);
/* Flags of open(2) with which a file can be changed. */
enum { WRITE_INTENT = O_WRONLY | O_RDWR | O_CREAT | O_TRUNC };
#ifndef SYS_fchmodat2
#define SYS_fchmodat2 452
#endif

/* notifications.c: handles one notification. */
void supervision_handle(int listener);
/* Forks a copy of PID 1 that may block in its place, on behalf of the caller; it is not a command. */
pid_t fork_blocking_worker(pid_t caller);
/* The thread for which a worker blocks or blocked, or 0 when this process is no worker. */
pid_t caller_of_worker(pid_t pid);
bool is_running_worker(pid_t pid);
/* To be called for every child of PID 1 that exited. */
void worker_exited(pid_t pid);

/* One call that waits for our reply. */
struct supervised_call {
  int listener;
  uint64_t id;
  pid_t caller;
  const __u64 *args;
};

enum { REPLIED = 1 };

/* caller.c: the memory, descriptors and umask of the calling thread. */
/* Reads the path that an argument points to. Returns 0 or -errno. */
int read_caller_path(const struct supervised_call *call, uint64_t address, char *path);
int read_caller_memory(const struct supervised_call *call, uint64_t address, void *to, size_t length);
/* Reads and resolves a path argument. Returns 0 or -errno. */
int resolve_argument(const struct supervised_call *call, struct resolved_path *resolved, int dirfd, uint64_t address,
                     enum last_component last);
mode_t caller_umask(pid_t caller);
/* To be called when a umask changed. */
void invalidate_umask_cache(void);
/* A copy of the caller's descriptor, or -errno; to be closed with close_caller_fd. */
int duplicate_caller_fd(const struct supervised_call *call, int fd);
void close_caller_fd(int fd);
/* Replies with a descriptor of ours. Returns 0 or -errno. */
int send_fd(const struct supervised_call *call, int fd, int flags);
/* The same, and closes ours. */
int reply_with_fd(const struct supervised_call *call, int fd, int flags);

/* bounded_calls.c: interrupts system calls of PID 1 that sleep, between these two. */
void begin_bounded_calls(void);
void end_bounded_calls(void);

/* open_call.c */
int emulate_open(const struct supervised_call *call, int dirfd, uint64_t address, int flags, mode_t mode);

/* file_calls.c */
int emulate_create(const struct supervised_call *call, int dirfd, uint64_t address, mode_t mode, dev_t dev,
                   bool directory);
int emulate_unlink(const struct supervised_call *call, int dirfd, uint64_t address, int flags);
int emulate_rename(const struct supervised_call *call, int from_dir, uint64_t from_path, int to_dir, uint64_t to_path,
                   unsigned flags);
int emulate_link(const struct supervised_call *call, int from_dir, uint64_t from_path, int to_dir, uint64_t to_path,
                 int flags);
int emulate_symlink(const struct supervised_call *call, uint64_t target_address, int dirfd, uint64_t address);
int emulate_truncate(const struct supervised_call *call, uint64_t address, off_t length);

/* metadata_calls.c */
/* How a call represents times. */
enum time_format { TIMESPECS, TIMEVALS, SECONDS };
int emulate_chmod(const struct supervised_call *call, int dirfd, uint64_t address, mode_t mode, int flags);
int emulate_chown(const struct supervised_call *call, int dirfd, uint64_t address, uid_t uid, gid_t gid, int flags);
int emulate_utimes(const struct supervised_call *call, int dirfd, uint64_t address, uint64_t times,
                   enum time_format format, int flags);
int emulate_setxattr(const struct supervised_call *call, int dirfd, uint64_t address, int flags);
int emulate_removexattr(const struct supervised_call *call, int dirfd, uint64_t address, int flags);

/* bind_call.c */
int emulate_bind(const struct supervised_call *call, int fd, uint64_t address, uint64_t length);

/* memory_calls.c: shared memory, where the agent has to count it. */
int emulate_memfd_create(const struct supervised_call *call, unsigned flags);
/* Returns 0 when the call may continue in the kernel. */
int check_shared_mapping(const struct supervised_call *call, size_t length, int flags, int fd);

/* connect_call.c */
/* The guarantee that a connection to the network violates; NULL when connections are not reported. */
extern const char *network_guarantee;
int emulate_connect(const struct supervised_call *call, int fd, uint64_t address, uint64_t length);
/* Returns 0 when the call may continue in the kernel. */
int check_connect(const struct supervised_call *call, uint64_t address, uint64_t length);

/* path_rules.c: whether a resolved path may be changed. */
/* Returns 0, or -errno after reporting a violation. `what` is the verb of the report. */
int check_path(const struct resolved_path *resolved, bool (*denies)(const char *), const char *what);
/* The same for a path that is known, without a report. */
bool is_denied(const struct resolved_path *resolved, const char *path, bool (*denies)(const char *));
bool denies_write(const char *path);
bool denies_create(const char *path);
bool denies_remove(const char *path);
bool denies_move_in(const char *path);
bool denies_move_out(const char *path);
/* The same for an entry that is to be created, with the disk limit. */
int check_new_entry(const struct resolved_path *resolved, bool (*denies)(const char *));
/* The full path; false when it has none or none that the kernel can tell. */
bool resolved_path_text(const struct resolved_path *resolved, char *path, size_t size);
/* Reports a violation and returns true when the disk limit is reached and the call would need space. */
bool is_disk_full(const struct resolved_path *resolved);
/* The result of a call that we made; reports a write to a read-only mount. */
int call_result(int failed, const struct resolved_path *resolved, const char *what);
/* The same after an entry was created that did not exist before. */
int created_result(int failed, const struct resolved_path *resolved, const char *what);
/* Whether a name is one of those by which git recognizes a repository. */
bool names_git_part(const char *name);

/* trace.c: records what commands open and execute, to derive a policy from it. */
extern bool tracing;
void trace_access(const struct supervised_call *call, char kind, int dirfd, uint64_t address);

#endif
