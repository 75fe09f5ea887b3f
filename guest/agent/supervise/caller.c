#include "supervise/supervise.h"

#include <linux/seccomp.h>
#include <sys/ioctl.h>
#include <sys/uio.h>

#ifndef PIDFD_THREAD
#define PIDFD_THREAD O_EXCL
#endif

static ssize_t read_memory_file(pid_t caller, uint64_t address, void *to, size_t length) {
  char name[32];
  snprintf(name, sizeof name, "%d/mem", caller);
  int fd = openat(proc_fd, name, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return errno = EPERM, -1;
  ssize_t got = pread(fd, to, length, (off_t)address);
  close(fd);
  return got;
}

/*
 * Reads as much as there is. PLATFORM: the filter of some container engines refuses process_vm_readv to everybody without
 * CAP_SYS_PTRACE; the memory file in /proc needs the same permission, and three calls.
 */
static ssize_t read_memory(pid_t caller, uint64_t address, void *to, size_t length) {
  static bool refused;
  size_t page = 4096, first = page - address % page;
  struct iovec local = {to, length};
  struct iovec remote[2] = {{(void *)(uintptr_t)address, first < length ? first : length},
                            {(void *)(uintptr_t)(address + first), first < length ? length - first : 0}};
  ssize_t got = refused ? -1 : process_vm_readv(caller, &local, 1, remote, first < length ? 2 : 1, 0);
  if (got >= 0 || (!refused && errno != EPERM && errno != ENOSYS)) return got;
  got = read_memory_file(caller, address, to, length);
  if (got > 0) refused = true;
  return got;
}

/* Most paths end in the page in which they start, and every page costs as much as the call itself. */
static ssize_t read_path_memory(pid_t caller, uint64_t address, char *path) {
  size_t page = 4096, first = page - address % page;
  ssize_t got = read_memory(caller, address, path, first);
  if (got != (ssize_t)first || first == PATH_MAX || memchr(path, 0, first)) return got;
  ssize_t more = read_memory(caller, address + first, path + first, PATH_MAX - first);
  return more > 0 ? got + more : got;
}

int read_caller_path(const struct supervised_call *call, uint64_t address, char *path) {
  ssize_t got = read_path_memory(call->caller, address, path);
  if (got <= 0) return errno == EPERM ? -EPERM : -EFAULT;
  if (!memchr(path, 0, (size_t)got)) return got == PATH_MAX ? -ENAMETOOLONG : -EFAULT;
  /* The notification is still valid, so the thread that we read from is the one that made the call. */
  return ioctl(call->listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &call->id) ? -EINTR : 0;
}

int read_caller_memory(const struct supervised_call *call, uint64_t address, void *to, size_t length) {
  ssize_t got = read_memory(call->caller, address, to, length);
  if (got != (ssize_t)length) return got < 0 && errno == EPERM ? -EPERM : -EFAULT;
  return ioctl(call->listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &call->id) ? -EINTR : 0;
}

/* The number after `field` in /proc/<thread>/status, or `otherwise`. */
static unsigned long status_number(pid_t thread, const char *field, int base, unsigned long otherwise) {
  char name[32], text[512];
  snprintf(name, sizeof name, "%d/status", thread);
  const char *line = read_text_at(proc_fd, name, text, sizeof text) > 0 ? strstr(text, field) : NULL;
  return line ? strtoul(line + strlen(field), NULL, base) : otherwise;
}

/*
 * Reading a thread's umask is the most expensive part of creating a file, so the last one is cached: until a umask
 * changes (those calls are supervised too), and only so long that the thread id cannot have been reused.
 */
static struct {
  pid_t caller;
  mode_t mask;
  int64_t until;
} umask_cache;

enum { UMASK_CACHE_MS = 50 };

void invalidate_umask_cache(void) { umask_cache.caller = 0; }

mode_t caller_umask(pid_t caller) {
  int64_t now = monotonic_ms();
  if (umask_cache.caller != caller || now > umask_cache.until) {
    umask_cache.caller = caller;
    umask_cache.mask = (mode_t)status_number(caller, "\nUmask:", 8, 077);
    umask_cache.until = now + UMASK_CACHE_MS;
  }
  return umask_cache.mask;
}

int resolve_argument(const struct supervised_call *call, struct resolved_path *resolved, int dirfd, uint64_t address,
                     enum last_component last) {
  char path[PATH_MAX];
  int error = read_caller_path(call, address, path);
  return error ? error : resolve(resolved, call->caller, dirfd, path, last);
}

int send_fd(const struct supervised_call *call, int fd, int flags) {
  struct seccomp_notif_addfd add = {.id = call->id,
                                    .flags = SECCOMP_ADDFD_FLAG_SEND,
                                    .srcfd = (unsigned)fd,
                                    .newfd_flags = (unsigned)(flags & O_CLOEXEC)};
  return ioctl(call->listener, SECCOMP_IOCTL_NOTIF_ADDFD, &add) < 0 ? -errno : 0;
}

int reply_with_fd(const struct supervised_call *call, int fd, int flags) {
  int error = send_fd(call, fd, flags);
  close(fd);
  return error;
}

static pid_t thread_group_of(pid_t thread) {
  return (pid_t)status_number(thread, "\nTgid:", 10, (unsigned long)thread);
}

static bool is_same_file(int ours, pid_t caller, int theirs) {
  char name[64];
  struct stat a, b;
  snprintf(name, sizeof name, "%d/fd/%d", caller, theirs);
  return !fstat(ours, &a) && !fstatat(proc_fd, name, &b, 0) && a.st_ino == b.st_ino && a.st_dev == b.st_dev;
}

int duplicate_caller_fd(const struct supervised_call *call, int fd) {
  int pidfd = (int)syscall(SYS_pidfd_open, call->caller, PIDFD_THREAD);
  /*
   * PLATFORM: before Linux 6.9 there are no pidfds of threads. Threads usually share descriptors; if not, we find
   * another file and refuse.
   */
  if (pidfd < 0) pidfd = (int)syscall(SYS_pidfd_open, thread_group_of(call->caller), 0);
  if (pidfd < 0) return -errno;
  int copy = (int)syscall(SYS_pidfd_getfd, pidfd, fd, 0), error = errno;
  close(pidfd);
  if (copy < 0) return -error;
  if (is_same_file(copy, call->caller, fd)) return copy;
  close_caller_fd(copy);
  return -EBADF;
}

/* SECURITY: if the caller has closed its own descriptor meanwhile, ours is the last, and SO_LINGER makes close wait. */
void close_caller_fd(int fd) {
  begin_bounded_calls();
  close(fd);
  end_bounded_calls();
}
