#include "limits/limits.h"
#include "supervise/supervise.h"

#include <sys/xattr.h>

/* Modes, owners, times and extended attributes. Those of a protected file cannot be changed either. */

/* Resolves a path, or a descriptor when the path is NULL, or empty with AT_EMPTY_PATH. */
static int resolve_at(const struct supervised_call *call, struct resolved_path *resolved, int dirfd, uint64_t address,
                      int flags) {
  char path[PATH_MAX] = "", name[64];
  int error = address ? read_caller_path(call, address, path) : 0;
  if (error) return error;
  if (path[0])
    return resolve(resolved, call->caller, dirfd, path, flags & AT_SYMLINK_NOFOLLOW ? NO_FOLLOW : FOLLOW_SYMLINK);
  if (address && !(flags & AT_EMPTY_PATH)) return -ENOENT;
  if (!address && dirfd == AT_FDCWD) return -EFAULT;
  if (dirfd == AT_FDCWD) snprintf(name, sizeof name, "%d/cwd", call->caller);
  else snprintf(name, sizeof name, "%d/fd/%d", call->caller, dirfd);
  *resolved = (struct resolved_path){.parent = -1, .fd = openat(proc_fd, name, O_PATH | O_CLOEXEC)};
  if (resolved->fd >= 0 && !fstat(resolved->fd, &resolved->stat)) return 0;
  release_path(resolved);
  return -EBADF;
}

static int resolve_for_change(const struct supervised_call *call, struct resolved_path *resolved, int dirfd,
                              uint64_t address, int flags, const char *what) {
  int error = resolve_at(call, resolved, dirfd, address, flags);
  if (error) return error;
  error = resolved->fd < 0 ? -ENOENT : check_path(resolved, denies_write, what);
  if (error) release_path(resolved);
  return error;
}

static int finish_change(int failed, struct resolved_path *resolved, const char *what) {
  int result = call_result(failed, resolved, what);
  release_path(resolved);
  return result;
}

static void proc_link(const struct resolved_path *resolved, char *link, size_t size) {
  snprintf(link, size, "/proc/self/fd/%d", resolved->fd);
}

int emulate_chmod(const struct supervised_call *call, int dirfd, uint64_t address, mode_t mode, int flags) {
  static const char what[] = "change the mode of";
  struct resolved_path resolved;
  char link[64];
  int error = resolve_for_change(call, &resolved, dirfd, address, flags, what);
  if (error) return error;
  proc_link(&resolved, link, sizeof link);
  if (S_ISLNK(resolved.stat.st_mode)) return release_path(&resolved), -EOPNOTSUPP;
  return finish_change(chmod(link, mode), &resolved, what);
}

int emulate_chown(const struct supervised_call *call, int dirfd, uint64_t address, uid_t uid, gid_t gid, int flags) {
  static const char what[] = "change the owner of";
  struct resolved_path resolved;
  int error = resolve_for_change(call, &resolved, dirfd, address, flags, what);
  return error ? error : finish_change(fchownat(resolved.fd, "", uid, gid, AT_EMPTY_PATH), &resolved, what);
}

/* Converts the caller's times to timespecs. */
static int read_times(const struct supervised_call *call, uint64_t address, enum time_format format,
                      struct timespec times[2]) {
  int64_t raw[4] = {0};
  int error = read_caller_memory(call, address, raw, format == SECONDS ? 2 * sizeof *raw : sizeof raw);
  if (error) return error;
  for (int i = 0; i < 2; i++) {
    times[i].tv_sec = (time_t)(format == SECONDS ? raw[i] : raw[2 * i]);
    int64_t fraction = format == SECONDS ? 0 : raw[2 * i + 1];
    if (format == TIMEVALS && (fraction < 0 || fraction >= 1000000)) return -EINVAL;
    times[i].tv_nsec = (long)(format == TIMEVALS ? fraction * 1000 : fraction);
  }
  return 0;
}

int emulate_utimes(const struct supervised_call *call, int dirfd, uint64_t address, uint64_t times,
                   enum time_format format, int flags) {
  static const char what[] = "change the times of";
  struct timespec wanted[2];
  struct resolved_path resolved;
  char link[64];
  int error = times ? read_times(call, times, format, wanted) : 0;
  if (!error) error = resolve_for_change(call, &resolved, dirfd, address, flags, what);
  if (error) return error;
  const struct timespec *given = times ? wanted : NULL;
  int failed = (int)syscall(SYS_utimensat, resolved.fd, "", given, AT_EMPTY_PATH);
  /* PLATFORM: before Linux 5.8 utimensat needs a path. */
  proc_link(&resolved, link, sizeof link);
  if (failed && errno == EINVAL && !S_ISLNK(resolved.stat.st_mode)) failed = utimensat(AT_FDCWD, link, given, 0);
  return finish_change(failed, &resolved, what);
}

enum { XATTR_NAME_SIZE = 256, XATTR_VALUE_SIZE = 65536 };

/* Reads the name of an attribute. */
static int read_name(const struct supervised_call *call, uint64_t address, char name[XATTR_NAME_SIZE]) {
  char text[PATH_MAX];
  int error = read_caller_path(call, address, text);
  if (error) return error;
  return snprintf(name, XATTR_NAME_SIZE, "%s", text) >= XATTR_NAME_SIZE ? -ERANGE : 0;
}

static int resolve_for_xattr(const struct supervised_call *call, struct resolved_path *resolved, int dirfd,
                             uint64_t address, int flags, char *name) {
  int error = read_name(call, call->args[1], name);
  if (!error) error = resolve_for_change(call, resolved, dirfd, address, flags, "change an attribute of");
  if (error || !S_ISLNK(resolved->stat.st_mode)) return error;
  release_path(resolved);
  return -EPERM; /* unprivileged users cannot set attributes of symbolic links */
}

/* SECURITY: attributes use disk space too. */
static bool count_xattr(const struct resolved_path *resolved, size_t size) {
  if (!limits.disk_bytes) return true;
  if (!S_ISREG(resolved->stat.st_mode)) return disk_add_bytes(size), true;
  return disk_track_file(resolved->fd, &resolved->stat, false);
}

int emulate_setxattr(const struct supervised_call *call, int dirfd, uint64_t address, int flags) {
  static char value[XATTR_VALUE_SIZE];
  char name[XATTR_NAME_SIZE], link[64];
  struct resolved_path resolved;
  size_t size = (size_t)call->args[3];
  if (size > sizeof value) return -E2BIG;
  int error = size ? read_caller_memory(call, call->args[2], value, size) : 0;
  if (!error) error = resolve_for_xattr(call, &resolved, dirfd, address, flags, name);
  if (error) return error;
  proc_link(&resolved, link, sizeof link);
  if (is_disk_full(&resolved) || !count_xattr(&resolved, size)) return release_path(&resolved), -ENOSPC;
  return finish_change(setxattr(link, name, value, size, (int)call->args[4]), &resolved, "change an attribute of");
}

int emulate_removexattr(const struct supervised_call *call, int dirfd, uint64_t address, int flags) {
  char name[XATTR_NAME_SIZE], link[64];
  struct resolved_path resolved;
  int error = resolve_for_xattr(call, &resolved, dirfd, address, flags, name);
  if (error) return error;
  proc_link(&resolved, link, sizeof link);
  return finish_change(removexattr(link, name), &resolved, "change an attribute of");
}
