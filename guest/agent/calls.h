/*
 * The calls that PID 1 makes in a guest's stead. Each resolves the path itself, judges the place that it leads to and
 * acts on that very place. The answer is 0, -errno, or SENT when the caller has its descriptor already.
 */
#ifndef RINGFENCE_CALLS_H
#define RINGFENCE_CALLS_H

#include "agent.h"

#include <linux/types.h>

/* One call of the guest. */
struct call {
  int listener;
  uint64_t id;
  pid_t caller;
  const __u64 *args;
};

enum { SENT = 1 };

int do_open(const struct call *call, int dirfd, uint64_t address, int flags, mode_t mode);
int do_make(const struct call *call, int dirfd, uint64_t address, mode_t mode, dev_t dev, bool directory);
int do_unlink(const struct call *call, int dirfd, uint64_t address, int flags);
int do_rename(const struct call *call, int from_dir, uint64_t from_path, int to_dir, uint64_t to_path, unsigned flags);
int do_link(const struct call *call, int from_dir, uint64_t from_path, int to_dir, uint64_t to_path, int flags);
int do_symlink(const struct call *call, uint64_t target_address, int dirfd, uint64_t address);
int do_truncate(const struct call *call, uint64_t address, off_t length);
int do_chmod(const struct call *call, int dirfd, uint64_t address, mode_t mode, int flags);
int do_fchmod(const struct call *call, int fd, mode_t mode);
/* connects.c: 0 when the call may run by itself. */
int tell_connect(const struct call *call, uint64_t address, uint64_t length);
/* The path that a call's argument points to. Returns 0 or -errno. */
int read_path(const struct call *call, uint64_t address, char *path);
/* learn.c */
extern bool learning;
void note_use(const struct call *call, char kind, int dirfd, uint64_t address);
/* Somebody changed a umask: what we remember of one is worth nothing. */
void forget_umask(void);

#endif
