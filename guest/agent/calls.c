#include "calls.h"

#include <linux/seccomp.h>
#include <sys/ioctl.h>
#include <sys/uio.h>

int read_caller_path(const struct supervised_call *call, uint64_t address, char *path) {
  size_t page = 4096, first = page - address % page;
  struct iovec to = {path, PATH_MAX};
  struct iovec from[2] = {{(void *)(uintptr_t)address, first}, {(void *)(uintptr_t)(address + first), PATH_MAX - first}};
  ssize_t got = process_vm_readv(call->caller, &to, 1, from, first < PATH_MAX ? 2 : 1, 0);
  if (got <= 0) return errno == EPERM ? -EPERM : -EFAULT;
  if (!memchr(path, 0, (size_t)got)) return got == PATH_MAX ? -ENAMETOOLONG : -EFAULT;
  /* The id is still waiting, so the thread that we read from is the one that called. */
  return ioctl(call->listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &call->id) ? -EINTR : 0;
}

int read_caller_memory(const struct supervised_call *call, uint64_t address, void *to, size_t length) {
  struct iovec local = {to, length}, remote = {(void *)(uintptr_t)address, length};
  ssize_t got = process_vm_readv(call->caller, &local, 1, &remote, 1, 0);
  if (got != (ssize_t)length) return got < 0 && errno == EPERM ? -EPERM : -EFAULT;
  return ioctl(call->listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &call->id) ? -EINTR : 0;
}

static mode_t read_umask(pid_t caller) {
  char name[32], text[512];
  snprintf(name, sizeof name, "%d/status", caller);
  int fd = openat(proc_fd, name, O_RDONLY | O_CLOEXEC);
  ssize_t length = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
  if (fd >= 0) close(fd);
  if (length <= 0) return 077;
  text[length] = 0;
  const char *line = strstr(text, "\nUmask:");
  return line ? (mode_t)strtoul(line + 7, NULL, 8) : 077;
}

/*
 * Reading a thread's umask is the dearest part of creating a file, so the last one is kept: until anybody changes a
 * umask (we see that call too), and not for so long that the number could belong to a new thread.
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
    umask_cache.mask = read_umask(caller);
    umask_cache.until = now + UMASK_CACHE_MS;
  }
  return umask_cache.mask;
}

static int report_readonly(const struct resolved_path *resolved, int error, const char *what) {
  char path[PATH_MAX * 2];
  if (error == EROFS && resolved_path_text(resolved, path, sizeof path)) report_violation("fs.write", "%s %s", what, path);
  return -error;
}

int resolve_argument(const struct supervised_call *call, struct resolved_path *resolved, int dirfd, uint64_t address, enum last_component last) {
  char path[PATH_MAX];
  int error = read_caller_path(call, address, path);
  return error ? error : resolve(resolved, call->caller, dirfd, path, last);
}

int reply_with_fd(const struct supervised_call *call, int fd, int flags) {
  struct seccomp_notif_addfd add = {.id = call->id, .flags = SECCOMP_ADDFD_FLAG_SEND, .srcfd = (unsigned)fd,
                                    .newfd_flags = (unsigned)(flags & O_CLOEXEC)};
  int result = ioctl(call->listener, SECCOMP_IOCTL_NOTIF_ADDFD, &add);
  int error = result < 0 ? -errno : 0;
  close(fd);
  return error;
}

/* A fifo opens when its other side does. We must not wait here, so a copy of us does. */
static int open_in_child(const struct supervised_call *call, const char *link, int flags) {
  pid_t worker = fork_blocking_worker();
  if (worker < 0) return -errno;
  if (worker > 0) return REPLIED;
  int fd = openat(proc_fd, link, flags | O_CLOEXEC | O_NOCTTY);
  struct seccomp_notif_resp answer = {.id = call->id, .error = -errno};
  if (fd < 0 || (answer.error = reply_with_fd(call, fd, flags))) ioctl(call->listener, SECCOMP_IOCTL_NOTIF_SEND, &answer);
  _exit(0);
}

/* `/dev/stdout` when it is a socket: opening would fail, and what the caller means is the descriptor it has. */
static int duplicate_standard_socket(const struct supervised_call *call, const struct resolved_path *resolved) {
  char path[64];
  struct stat stat;
  for (int fd = 0; fd < 3; fd++) {
    snprintf(path, sizeof path, "%d/fd/%d", call->caller, fd);
    if (fstatat(proc_fd, path, &stat, 0) || stat.st_ino != resolved->stat.st_ino || stat.st_dev != resolved->stat.st_dev) continue;
    int copy = duplicate_caller_fd(call, fd);
    return copy < 0 ? -ENXIO : copy;
  }
  return -ENXIO;
}

static int reply_with_open_file(const struct supervised_call *call, int fd, int flags, bool created) {
  struct stat stat;
  /* SECURITY: what cannot be counted is not handed over. */
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
    return fd < 0 ? fd : reply_with_open_file(call, fd, flags | O_NONBLOCK, false);
  }
  bool unnamed = (flags & O_TMPFILE) == O_TMPFILE;
  snprintf(link, sizeof link, "self/fd/%d", resolved->fd);
  /* Without a name `O_EXCL` means that it never gets one. */
  int wanted = flags & ~(O_CREAT | O_NOFOLLOW | (unnamed ? 0 : O_EXCL));
  if (S_ISFIFO(resolved->stat.st_mode) && !(flags & O_NONBLOCK)) return open_in_child(call, link, wanted);
  /* SECURITY: in /proc the kernel asks who opens. We may look into ourselves and trace everybody; a copy of us may not. */
  if (is_procfs(resolved->fd) && !is_proc_file_of_caller(resolved->fd, call->caller)) return open_in_child(call, link, wanted);
  if (unnamed) mode &= ~caller_umask(call->caller);
  int fd = openat(proc_fd, link, wanted | O_NONBLOCK | O_CLOEXEC | O_NOCTTY, mode & 07777);
  return fd < 0 ? report_readonly(resolved, errno, "write") : reply_with_open_file(call, fd, flags, false);
}

static int open_entry(const struct supervised_call *call, struct resolved_path *resolved, int flags, mode_t mode) {
  bool existed = resolved->fd >= 0;
  if (existed && S_ISFIFO(resolved->stat.st_mode)) return open_object(call, resolved, flags, mode);
  if (existed && (flags & O_CREAT) && (flags & O_EXCL)) return -EEXIST;
  if (!existed && resolved->must_be_dir) return flags & O_CREAT ? -EISDIR : -ENOENT;
  if (existed && resolved->must_be_dir && !S_ISDIR(resolved->stat.st_mode)) return -ENOTDIR;
  if (is_procfs(resolved->parent)) return existed ? open_object(call, resolved, flags, mode) : -ENOENT;
  mode &= ~caller_umask(call->caller);
  int fd = openat(resolved->parent, resolved->name, flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY, mode & 07777);
  return fd < 0 ? report_readonly(resolved, errno, "write") : reply_with_open_file(call, fd, flags, !existed);
}

/* An open of a plain name in a plain directory, the usual case. Returns 1 more than SENT when it is not one. */
enum { NOT_SIMPLE = 2 };

static int open_simple(const struct supervised_call *call, int dirfd, uint64_t address, int flags, mode_t mode) {
  struct resolved_path resolved;
  if (limits.disk_bytes || (flags & O_TMPFILE) == O_TMPFILE) return NOT_SIMPLE;
  int result = resolve_argument(call, &resolved, dirfd, address, PARENT_ONLY);
  if (result) return result;
  if (resolved.parent < 0 || is_procfs(resolved.parent)) result = NOT_SIMPLE;
  else if (!(result = check_path(&resolved, denies_create, "write"))) {
    if (flags & O_CREAT) mode &= ~caller_umask(call->caller);
    int fd = openat(resolved.parent, resolved.name, flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY, mode & 07777);
    if (fd >= 0) result = reply_with_open_file(call, fd, flags, false);
    else result = errno == ELOOP || errno == ENXIO ? NOT_SIMPLE : report_readonly(&resolved, errno, "write");
  }
  release_path(&resolved);
  return result;
}

/* SECURITY: a full disk takes no more. What is there can be read and removed, and the sandbox goes on. */
bool is_disk_full(const struct resolved_path *resolved) {
  char path[PATH_MAX * 2];
  bool grows = resolved->fd < 0 || S_ISREG(resolved->stat.st_mode) || S_ISDIR(resolved->stat.st_mode);
  if (!grows || !disk_is_full()) return false;
  if (resolved_path_text(resolved, path, sizeof path)) report_violation("limit.disk", "write %s", path);
  return true;
}

int emulate_open(const struct supervised_call *call, int dirfd, uint64_t address, int flags, mode_t mode) {
  struct resolved_path resolved;
  int result = open_simple(call, dirfd, address, flags, mode);
  if (result != NOT_SIMPLE) return result;
  bool exclusive = (flags & O_CREAT) && (flags & O_EXCL);
  result = resolve_argument(call, &resolved, dirfd, address, (flags & O_NOFOLLOW) || exclusive ? NO_FOLLOW : FOLLOW_SYMLINK);
  if (result) return result;
  bool creates = (flags & O_CREAT) && resolved.fd < 0;
  if ((result = check_path(&resolved, creates ? denies_create : denies_write, "write"))) ;
  else if (is_disk_full(&resolved)) result = -ENOSPC;
  else if ((flags & O_TMPFILE) == O_TMPFILE && resolved.fd >= 0) result = open_object(call, &resolved, flags, mode);
  else if (resolved.parent < 0) result = open_object(call, &resolved, flags, mode);
  else result = open_entry(call, &resolved, flags, mode);
  release_path(&resolved);
  return result;
}

int call_result(int failed, const struct resolved_path *resolved, const char *what) {
  return failed ? report_readonly(resolved, errno, what) : 0;
}

int emulate_create(const struct supervised_call *call, int dirfd, uint64_t address, mode_t mode, dev_t dev, bool directory) {
  struct resolved_path resolved;
  int result = resolve_argument(call, &resolved, dirfd, address, NO_FOLLOW);
  if (result) return result;
  mode &= ~caller_umask(call->caller);
  if (resolved.fd >= 0) result = -EEXIST;
  else if ((result = check_path(&resolved, directory ? denies_create : denies_move_in, "create"))) ;
  else if (is_disk_full(&resolved)) result = -ENOSPC;
  else if (directory) result = call_result(mkdirat(resolved.parent, resolved.name, mode), &resolved, "create");
  else result = call_result(mknodat(resolved.parent, resolved.name, mode, dev), &resolved, "create");
  if (!result) disk_add_entry();
  release_path(&resolved);
  return result;
}

int emulate_unlink(const struct supervised_call *call, int dirfd, uint64_t address, int flags) {
  struct resolved_path resolved;
  int result = resolve_argument(call, &resolved, dirfd, address, NO_FOLLOW);
  if (result) return result;
  bool directory = flags & AT_REMOVEDIR;
  if (resolved.parent < 0) result = directory ? -EINVAL : -EISDIR;
  else if (resolved.fd >= 0 && (result = check_path(&resolved, denies_remove, "remove"))) ;
  else if (resolved.must_be_dir && !directory && resolved.fd >= 0) result = S_ISDIR(resolved.stat.st_mode) ? -EISDIR : -ENOTDIR;
  else result = call_result(unlinkat(resolved.parent, resolved.name, flags), &resolved, "remove");
  if (!result) disk_remove_entry();
  release_path(&resolved);
  return result;
}

/* A directory that leaves a dependency tree would carry names out that were exempt inside: let it be copied. */
static bool leaves_dependency_directory(const struct resolved_path *from, const struct resolved_path *to) {
  char old[PATH_MAX * 2], new[PATH_MAX * 2];
  if (!S_ISDIR(from->stat.st_mode)) return false;
  if (!resolved_path_text(from, old, sizeof old) || !resolved_path_text(to, new, sizeof new)) return true;
  return is_in_dependency_directory(old) && !is_in_dependency_directory(new);
}

/* Whatever is moved, both names are judged for all that it may bring: a directory its inside, a link its target. */
static int check_rename(const struct resolved_path *from, const struct resolved_path *to, bool exchange) {
  if (from->parent < 0 || to->parent < 0) return -EBUSY;
  if (from->fd < 0 || (exchange && to->fd < 0)) return -ENOENT;
  int error = check_path(from, denies_move_out, "move");
  if (!error) error = check_path(to, denies_move_in, "replace");
  if (!error && exchange) error = check_path(to, denies_move_out, "move");
  if (!error && exchange) error = check_path(from, denies_move_in, "replace");
  if (error) return error;
  if (leaves_dependency_directory(from, to) || (exchange && leaves_dependency_directory(to, from))) return -EXDEV;
  bool directories = S_ISDIR(from->stat.st_mode) && (!exchange || S_ISDIR(to->stat.st_mode));
  return (from->must_be_dir || to->must_be_dir) && !directories ? -ENOTDIR : 0;
}

int emulate_rename(const struct supervised_call *call, int from_dir, uint64_t from_path, int to_dir, uint64_t to_path, unsigned flags) {
  struct resolved_path from, to;
  int result = resolve_argument(call, &from, from_dir, from_path, NO_FOLLOW);
  if (result) return result;
  if ((result = resolve_argument(call, &to, to_dir, to_path, NO_FOLLOW))) return release_path(&from), result;
  bool exchange = flags & 2 /* RENAME_EXCHANGE */;
  result = check_rename(&from, &to, exchange);
  if (!result) {
    result = call_result((int)syscall(SYS_renameat2, from.parent, from.name, to.parent, to.name, flags), &to, "move");
    bool same = from.stat.st_ino == to.stat.st_ino && from.stat.st_dev == to.stat.st_dev;
    if (!result && to.fd >= 0 && !exchange && !same) disk_remove_entry();
  }
  release_path(&from);
  release_path(&to);
  return result;
}

int emulate_link(const struct supervised_call *call, int from_dir, uint64_t from_path, int to_dir, uint64_t to_path, int flags) {
  struct resolved_path from, to;
  char path[PATH_MAX], link[64];
  int result = read_caller_path(call, from_path, path);
  if (!result && !path[0] && (flags & AT_EMPTY_PATH)) {
    snprintf(path, sizeof path, "/proc/%d/fd/%d", call->caller, from_dir);
    flags |= AT_SYMLINK_FOLLOW;
  }
  if (!result) result = resolve(&from, call->caller, from_dir, path, flags & AT_SYMLINK_FOLLOW ? FOLLOW_SYMLINK : NO_FOLLOW);
  if (result) return result;
  if ((result = resolve_argument(call, &to, to_dir, to_path, NO_FOLLOW))) return release_path(&from), result;
  snprintf(link, sizeof link, "/proc/self/fd/%d", from.fd);
  if (to.parent < 0 || to.fd >= 0) result = -EEXIST;
  else if (from.fd < 0) result = -ENOENT;
  /* SECURITY: a second name for a protected file would be a way to write it. */
  else if ((result = check_path(&from, denies_write, "link")) || (result = check_path(&to, denies_move_in, "create"))) ;
  else if (from.parent < 0) result = call_result(linkat(AT_FDCWD, link, to.parent, to.name, AT_SYMLINK_FOLLOW), &to, "link");
  else result = call_result(linkat(from.parent, from.name, to.parent, to.name, 0), &to, "link");
  if (!result) disk_add_entry();
  release_path(&from);
  release_path(&to);
  return result;
}

int emulate_symlink(const struct supervised_call *call, uint64_t target_address, int dirfd, uint64_t address) {
  char target[PATH_MAX];
  struct resolved_path resolved;
  int result = read_caller_path(call, target_address, target);
  if (!result) result = resolve_argument(call, &resolved, dirfd, address, NO_FOLLOW);
  if (result) return result;
  if (resolved.parent < 0 || resolved.fd >= 0) result = -EEXIST;
  else if ((result = check_path(&resolved, denies_move_in, "create"))) ;
  else if (is_disk_full(&resolved)) result = -ENOSPC;
  else result = call_result(symlinkat(target, resolved.parent, resolved.name), &resolved, "create");
  if (!result) disk_add_entry();
  release_path(&resolved);
  return result;
}

int emulate_truncate(const struct supervised_call *call, uint64_t address, off_t length) {
  struct resolved_path resolved;
  int result = resolve_argument(call, &resolved, AT_FDCWD, address, FOLLOW_SYMLINK);
  if (result) return result;
  char link[32];
  snprintf(link, sizeof link, "self/fd/%d", resolved.fd);
  if (resolved.fd < 0) result = -ENOENT;
  else if ((result = check_path(&resolved, denies_write, "write"))) ;
  else if (!S_ISREG(resolved.stat.st_mode)) result = S_ISDIR(resolved.stat.st_mode) ? -EISDIR : -EINVAL;
  else if (length > resolved.stat.st_size && is_disk_full(&resolved)) result = -ENOSPC;
  else {
    int fd = openat(proc_fd, link, O_WRONLY | O_CLOEXEC | O_NONBLOCK);
    bool counted = fd < 0 || disk_track_file(fd, &resolved.stat, false);
    result = counted ? call_result(fd < 0 || ftruncate(fd, length), &resolved, "write") : -ENOSPC;
    if (fd >= 0) close(fd);
  }
  release_path(&resolved);
  return result;
}
