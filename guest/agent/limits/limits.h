/* Limits that the kernel does not enforce by itself on this host, so that the agent has to measure. */
#ifndef RINGFENCE_LIMITS_H
#define RINGFENCE_LIMITS_H

#include "common/common.h"
#include "isolate/isolate.h"

/* 0 means unlimited. */
struct limits {
  uint64_t memory_bytes;
  uint64_t socket_bytes; /* buffers of sockets, where a cgroup counts all other memory */
  uint64_t disk_bytes;
  uint64_t processes;
  bool shared_tmp; /* /tmp is the host's and does not count */
  int interval_ms; /* time between two measurements */
};

extern struct limits limits;
bool has_limits(void);
/* The name of the limit that is exceeded, or NULL. */
const char *exceeded_limit(void);

/* disk_usage.c: bytes that the sandbox wrote. */
/* Tracks a file that is about to be written; false when it cannot be, and then it must not be opened for writing. */
bool disk_track_file(int fd, const struct stat *stat, bool created);
/* Counts bytes that no file's size shows. */
void disk_add_bytes(size_t length);
/* Isolated commands. In PID 1, before the isolator is forked: */
void disk_share(void);
/* In a namespace init: files are not tracked here, but passed to PID 1 with their size before. */
void disk_pass_files(bool (*pass)(int fd, int64_t base));
/* In PID 1: a file that a namespace init passed; -1 if it could not be received. Takes the descriptor. */
void disk_track_passed(int fd, int64_t base);
/* Files on this device are not counted: a tmpfs that ends with its command counts as memory. */
void disk_ignore_device(dev_t device);
void disk_add_entry(void);
/* Bytes that the sandbox, or the isolated command, uses by now. */
uint64_t disk_usage(void);
void disk_remove_entry(void);
/* Stops tracking deleted files that no process has open. */
void disk_release_deleted(void);
/* Whether the limit was exceeded and there is still no space. */
bool disk_is_full(void);
/* Whether a disk of the sandbox's own has become full since the last call; the kernel refuses writes to it. */
bool own_disk_became_full(void);
/* Whether the limit is exceeded for the first time since there was space. */
bool disk_limit_crossed(void);

/* cgroup_events.c: where the kernel enforces the limits. -1: it does not. */
extern int commands_cgroup; /* cgroup.procs of the cgroup that commands enter */
extern int memory_events, pids_events;
/* Processes that the kernel killed for lack of memory, and forks that it refused, since the last call. */
uint64_t new_oom_kills(void);
uint64_t new_refused_forks(void);

/* memory_usage.c: memory and number of all processes. */
const char *exceeded_process_limit(void);
/* Memory that no process shows: tmpfs, shared memory, socket buffers. */
uint64_t shared_memory_usage(void);
/* Whether shared memory counts; only where every call that creates some is supervised. */
extern bool count_shared_memory;
/* Counts shared memory from now on; false when it exceeds the limit. */
bool reserve_shared_memory(size_t length);
/* Forgets all shared memory: no process is left that could hold any. */
void memory_usage_reset(void);

/* memfd_usage.c: memfds, created on behalf of commands. */
/* Returns a descriptor or -errno. */
int counted_memfd_create(const char *name, unsigned flags);
uint64_t memfd_usage(void);
/* Stops counting memfds that no process holds any more. */
void memfd_release_unused(void);
void memfd_release_all(void);

/* socket_usage.c: bytes in socket buffers. */
/* To be called before the seccomp filter is loaded, which refuses this kind of socket. */
void socket_usage_setup(void);
uint64_t socket_usage(void);

/* session/commands.c: what the namespace inits of isolated commands measured. */
struct isolated_usage isolated_usage(void);
/* session/commands.c: our own processes beside the commands, which no limit counts. */
size_t agent_processes(void);
void set_agent_processes(size_t count);

#endif
