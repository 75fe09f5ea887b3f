/*
 * The calls that PID 1 makes in a guest's stead. Each resolves the path itself, judges the place that it leads to and
 * acts on that very place. The answer is 0, -errno, or SENT when the caller has its descriptor already.
 */
#ifndef RINGFENCE_CALLS_H
#define RINGFENCE_CALLS_H

#include "agent.h"

#include <linux/types.h>

/* One call of the guest. */
struct supervised_call {
  int listener;
  uint64_t id;
  pid_t caller;
  const __u64 *args;
};

enum { REPLIED = 1 };

int emulate_open(const struct supervised_call *call, int dirfd, uint64_t address, int flags, mode_t mode);
int emulate_create(const struct supervised_call *call, int dirfd, uint64_t address, mode_t mode, dev_t dev, bool directory);
int emulate_unlink(const struct supervised_call *call, int dirfd, uint64_t address, int flags);
int emulate_rename(const struct supervised_call *call, int from_dir, uint64_t from_path, int to_dir, uint64_t to_path, unsigned flags);
int emulate_link(const struct supervised_call *call, int from_dir, uint64_t from_path, int to_dir, uint64_t to_path, int flags);
int emulate_symlink(const struct supervised_call *call, uint64_t target_address, int dirfd, uint64_t address);
int emulate_truncate(const struct supervised_call *call, uint64_t address, off_t length);
/* Gives the caller a descriptor of ours, which is closed here. Returns 0 or -errno. */
int reply_with_fd(const struct supervised_call *call, int fd, int flags);
/* metadata.c */
int emulate_chmod(const struct supervised_call *call, int dirfd, uint64_t address, mode_t mode, int flags);
int emulate_chown(const struct supervised_call *call, int dirfd, uint64_t address, uid_t uid, gid_t gid, int flags);
/* How a call writes its times down. */
enum time_format { TIMESPECS, TIMEVALS, SECONDS };
int emulate_utimes(const struct supervised_call *call, int dirfd, uint64_t address, uint64_t times, enum time_format format, int flags);
int emulate_setxattr(const struct supervised_call *call, int dirfd, uint64_t address, int flags);
int emulate_removexattr(const struct supervised_call *call, int dirfd, uint64_t address, int flags);
/* binds.c */
int emulate_bind(const struct supervised_call *call, int fd, uint64_t address, uint64_t length);
/* The caller's own descriptor, or -errno. */
int duplicate_caller_fd(const struct supervised_call *call, int fd);

/* judge.c: 0, or -errno with a report. */
int check_path(const struct resolved_path *resolved, bool (*denies)(const char *), const char *what);
bool denies_write(const char *path);
bool denies_create(const char *path);
bool denies_remove(const char *path);
bool denies_move_in(const char *path);
bool denies_move_out(const char *path);
/* The full path of a place; false when it has none, or none that can be told. */
bool resolved_path_text(const struct resolved_path *resolved, char *path, size_t size);

/* calls.c */
int resolve_argument(const struct supervised_call *call, struct resolved_path *resolved, int dirfd, uint64_t address, enum last_component last);
mode_t caller_umask(pid_t caller);
bool is_disk_full(const struct resolved_path *resolved);
/* The answer to a call that we made; one that a read-only mount refused is reported. */
int call_result(int failed, const struct resolved_path *resolved, const char *what);
/* shared.c: memory that is shared, where it has to be counted. */
int emulate_memfd_create(const struct supervised_call *call, unsigned flags);
/* 0 when the call may run by itself. */
int check_shared_mapping(const struct supervised_call *call, size_t length, int flags, int fd);
/* connects.c: 0 when the call may run by itself. */
int check_connect(const struct supervised_call *call, uint64_t address, uint64_t length);
/* The path that a call's argument points to. Returns 0 or -errno. */
int read_caller_path(const struct supervised_call *call, uint64_t address, char *path);
/* So many bytes of the caller's memory. */
int read_caller_memory(const struct supervised_call *call, uint64_t address, void *to, size_t length);
/* learn.c */
extern bool tracing;
void trace_access(const struct supervised_call *call, char kind, int dirfd, uint64_t address);
/* Somebody changed a umask: what we remember of one is worth nothing. */
void invalidate_umask_cache(void);

#endif
