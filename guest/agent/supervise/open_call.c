#include "common/channel.h"
#include "limits/limits.h"
#include "supervise/supervise.h"

#include <linux/seccomp.h>
#include <sys/ioctl.h>

/* Opening a fifo blocks until the other side is opened. PID 1 must not block, so a child opens it. */
static int open_in_child(const struct supervised_call *call, const char *link, int flags) {
  pid_t worker = fork_blocking_worker(call->caller);
  if (worker < 0) return -errno;
  if (worker > 0) return REPLIED;
  int fd = openat(proc_fd, link, flags | O_CLOEXEC | O_NOCTTY);
  struct seccomp_notif_resp answer = {.id = call->id, .error = -errno};
  if (fd < 0 || (answer.error = reply_with_fd(call, fd, flags)))
    ioctl(call->listener, SECCOMP_IOCTL_NOTIF_SEND, &answer);
  _exit(0);
}

/* `/dev/stdout` when it is a socket: opening would fail, and the caller means the descriptor that it has. */
static int duplicate_standard_socket(const struct supervised_call *call, const struct resolved_path *resolved) {
  char path[64];
  struct stat stat;
  for (int fd = 0; fd < 3; fd++) {
    snprintf(path, sizeof path, "%d/fd/%d", call->caller, fd);
    if (fstatat(proc_fd, path, &stat, 0) || stat.st_ino != resolved->stat.st_ino ||
        stat.st_dev != resolved->stat.st_dev)
      continue;
    int copy = duplicate_caller_fd(call, fd);
    return copy < 0 ? -ENXIO : copy;
  }
  return -ENXIO;
}

static int reply_with_open_file(const struct supervised_call *call, int fd, int flags, bool created) {
  struct stat stat;
  /* SECURITY: a file that cannot be tracked is not opened for writing. */
  if (limits.disk_bytes && (fstat(fd, &stat) || !disk_track_file(fd, &stat, created))) {
    report_violation("limit.disk", "too many files are open for writing");
    return close(fd), -ENOSPC;
  }
  if (created) disk_add_entry();
  if (!(flags & O_NONBLOCK)) fcntl(fd, F_SETFL, flags & (O_APPEND | O_ASYNC | O_DIRECT | O_NOATIME));
  int error = reply_with_fd(call, fd, flags);
  return error ? error : REPLIED;
}

static int open_object(const struct supervised_call *call, struct resolved_path *resolved, int flags, mode_t mode) {
  char link[32];
  if (S_ISSOCK(resolved->stat.st_mode)) {
    int fd = duplicate_standard_socket(call, resolved);
    if (fd < 0) return fd;
    int error = send_fd(call, fd, flags);
    close_caller_fd(fd);
    return error ? error : REPLIED;
  }
  bool unnamed = (flags & O_TMPFILE) == O_TMPFILE;
  snprintf(link, sizeof link, "self/fd/%d", resolved->fd);
  /* With O_TMPFILE, O_EXCL means that the file can never get a name. */
  int wanted = flags & ~(O_CREAT | O_NOFOLLOW | (unnamed ? 0 : O_EXCL));
  if (S_ISFIFO(resolved->stat.st_mode) && !(flags & O_NONBLOCK)) return open_in_child(call, link, wanted);
  /*
   * SECURITY: in /proc permissions depend on the process that opens. PID 1 may read its own entries and trace all
   * others; a child of it may not.
   */
  if (is_procfs(resolved->fd) && !is_proc_file_of_caller(resolved->fd, call->caller))
    return open_in_child(call, link, wanted);
  if (unnamed) mode &= ~caller_umask(call->caller);
  int fd = openat(proc_fd, link, wanted | O_NONBLOCK | O_CLOEXEC | O_NOCTTY, mode & 07777);
  return fd < 0 ? call_result(-1, resolved, "write") : reply_with_open_file(call, fd, flags, false);
}

static int open_entry(const struct supervised_call *call, struct resolved_path *resolved, int flags, mode_t mode) {
  bool existed = resolved->fd >= 0;
  if (existed && S_ISFIFO(resolved->stat.st_mode)) return open_object(call, resolved, flags, mode);
  if (existed && (flags & O_CREAT) && (flags & O_EXCL)) return -EEXIST;
  if (!existed && resolved->must_be_dir) return flags & O_CREAT ? -EISDIR : -ENOENT;
  if (existed && resolved->must_be_dir && !S_ISDIR(resolved->stat.st_mode)) return -ENOTDIR;
  if (is_procfs(resolved->parent)) return existed ? open_object(call, resolved, flags, mode) : -ENOENT;
  mode &= ~caller_umask(call->caller);
  int fd =
      openat(resolved->parent, resolved->name, flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY, mode & 07777);
  if (fd < 0) return call_result(-1, resolved, "write");
  int refused = existed ? 0 : created_result(0, resolved, "write");
  return refused ? (close(fd), refused) : reply_with_open_file(call, fd, flags, !existed);
}

/*
 * Tries the usual case: a regular name in a regular directory. NOT_SIMPLE means that the general case has to decide.
 */
enum { NOT_SIMPLE = 2 };

static int open_simple(const struct supervised_call *call, int dirfd, uint64_t address, int flags, mode_t mode) {
  struct resolved_path resolved;
  if (limits.disk_bytes || (flags & O_TMPFILE) == O_TMPFILE) return NOT_SIMPLE;
  int result = resolve_argument(call, &resolved, dirfd, address, PARENT_ONLY);
  if (result) return result;
  bool needs_existence = (flags & O_CREAT) && names_git_part(resolved.name);
  if (resolved.parent < 0 || resolved.must_be_dir || needs_existence || is_procfs(resolved.parent)) result = NOT_SIMPLE;
  else if (!(result = check_path(&resolved, denies_create, "write"))) {
    if (flags & O_CREAT) mode &= ~caller_umask(call->caller);
    int fd =
        openat(resolved.parent, resolved.name, flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY, mode & 07777);
    if (fd >= 0) result = reply_with_open_file(call, fd, flags, false);
    else result = errno == ELOOP || errno == ENXIO ? NOT_SIMPLE : call_result(-1, &resolved, "write");
  }
  release_path(&resolved);
  return result;
}

int emulate_open(const struct supervised_call *call, int dirfd, uint64_t address, int flags, mode_t mode) {
  struct resolved_path resolved;
  int result = open_simple(call, dirfd, address, flags, mode);
  if (result != NOT_SIMPLE) return result;
  bool exclusive = (flags & O_CREAT) && (flags & O_EXCL);
  result =
      resolve_argument(call, &resolved, dirfd, address, (flags & O_NOFOLLOW) || exclusive ? NO_FOLLOW : FOLLOW_SYMLINK);
  if (result) return result;
  bool creates = (flags & O_CREAT) && resolved.fd < 0;
  bool unnamed = (flags & O_TMPFILE) == O_TMPFILE && resolved.fd >= 0;
  if (creates && resolved.must_be_dir) result = -EISDIR;
  else result = check_path(&resolved, creates ? denies_create : denies_write, "write");
  if (!result && is_disk_full(&resolved)) result = -ENOSPC;
  if (!result)
    result = unnamed || resolved.parent < 0 ? open_object(call, &resolved, flags, mode)
                                            : open_entry(call, &resolved, flags, mode);
  release_path(&resolved);
  return result;
}
