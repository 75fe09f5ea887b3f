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
/* Gives the caller a descriptor of ours, which is closed here. Returns 0 or -errno. */
int give(const struct call *call, int fd, int flags);
/* metadata.c */
int do_chmod(const struct call *call, int dirfd, uint64_t address, mode_t mode, int flags);
int do_chown(const struct call *call, int dirfd, uint64_t address, uid_t uid, gid_t gid, int flags);
/* How a call writes its times down. */
enum time_format { TIMESPECS, TIMEVALS, SECONDS };
int do_times(const struct call *call, int dirfd, uint64_t address, uint64_t times, enum time_format format, int flags);
int do_set_attribute(const struct call *call, int dirfd, uint64_t address, int flags);
int do_remove_attribute(const struct call *call, int dirfd, uint64_t address, int flags);
/* binds.c */
int do_bind(const struct call *call, int fd, uint64_t address, uint64_t length);
/* The caller's own descriptor, or -errno. */
int take_descriptor(const struct call *call, int fd);

/* judge.c: 0, or -errno with a report. */
int judge(const struct place *place, bool (*refuses)(const char *), const char *what);
bool refuses_write(const char *path);
bool refuses_creation(const char *path);
bool refuses_removal(const char *path);
bool refuses_arrival(const char *path);
bool refuses_departure(const char *path);
/* The full path of a place; false when it has none, or none that can be told. */
bool place_path(const struct place *place, char *path, size_t size);

/* calls.c */
int locate(const struct call *call, struct place *place, int dirfd, uint64_t address, enum last_name last);
mode_t umask_of(pid_t caller);
bool has_no_room(const struct place *place);
/* The answer to a call that we made; one that a read-only mount refused is reported. */
int done(int failed, const struct place *place, const char *what);
/* shared.c: memory that is shared, where it has to be counted. */
int do_memory_file(const struct call *call, unsigned flags);
/* 0 when the call may run by itself. */
int judge_mapping(const struct call *call, size_t length, int flags, int fd);
/* connects.c: 0 when the call may run by itself. */
int tell_connect(const struct call *call, uint64_t address, uint64_t length);
/* The path that a call's argument points to. Returns 0 or -errno. */
int read_path(const struct call *call, uint64_t address, char *path);
/* So many bytes of the caller's memory. */
int read_memory(const struct call *call, uint64_t address, void *to, size_t length);
/* learn.c */
extern bool learning;
void note_use(const struct call *call, char kind, int dirfd, uint64_t address);
/* Somebody changed a umask: what we remember of one is worth nothing. */
void forget_umask(void);

#endif
