#include "calls.h"

#include <linux/seccomp.h>
#include <sys/ioctl.h>
#include <sys/uio.h>

int read_path(const struct call *call, uint64_t address, char *path) {
  size_t page = 4096, first = page - address % page;
  struct iovec to = {path, PATH_MAX};
  struct iovec from[2] = {{(void *)(uintptr_t)address, first}, {(void *)(uintptr_t)(address + first), PATH_MAX - first}};
  ssize_t got = process_vm_readv(call->caller, &to, 1, from, first < PATH_MAX ? 2 : 1, 0);
  if (got <= 0) return errno == EPERM ? -EPERM : -EFAULT;
  if (!memchr(path, 0, (size_t)got)) return got == PATH_MAX ? -ENAMETOOLONG : -EFAULT;
  /* The id is still waiting, so the thread that we read from is the one that called. */
  return ioctl(call->listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &call->id) ? -EINTR : 0;
}

int read_memory(const struct call *call, uint64_t address, void *to, size_t length) {
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
} last_umask;

enum { UMASK_KEPT_MS = 50 };

void forget_umask(void) { last_umask.caller = 0; }

mode_t umask_of(pid_t caller) {
  int64_t now = milliseconds();
  if (last_umask.caller != caller || now > last_umask.until) {
    last_umask.caller = caller;
    last_umask.mask = read_umask(caller);
    last_umask.until = now + UMASK_KEPT_MS;
  }
  return last_umask.mask;
}

static int refused_outside(const struct place *place, int error, const char *what) {
  char path[PATH_MAX * 2];
  if (error == EROFS && place_path(place, path, sizeof path)) report_violation("fs.write", "%s %s", what, path);
  return -error;
}

int locate(const struct call *call, struct place *place, int dirfd, uint64_t address, enum last_name last) {
  char path[PATH_MAX];
  int error = read_path(call, address, path);
  return error ? error : resolve(place, call->caller, dirfd, path, last);
}

int give(const struct call *call, int fd, int flags) {
  struct seccomp_notif_addfd add = {.id = call->id, .flags = SECCOMP_ADDFD_FLAG_SEND, .srcfd = (unsigned)fd,
                                    .newfd_flags = (unsigned)(flags & O_CLOEXEC)};
  int result = ioctl(call->listener, SECCOMP_IOCTL_NOTIF_ADDFD, &add);
  int error = result < 0 ? -errno : 0;
  close(fd);
  return error;
}

/* A fifo opens when its other side does. We must not wait here, so a copy of us does. */
static int open_apart(const struct call *call, const char *link, int flags) {
  pid_t worker = fork_waiter();
  if (worker < 0) return -errno;
  if (worker > 0) return SENT;
  int fd = openat(proc_fd, link, flags | O_CLOEXEC | O_NOCTTY);
  struct seccomp_notif_resp answer = {.id = call->id, .error = -errno};
  if (fd < 0 || (answer.error = give(call, fd, flags))) ioctl(call->listener, SECCOMP_IOCTL_NOTIF_SEND, &answer);
  _exit(0);
}

/* `/dev/stdout` when it is a socket: opening would fail, and what the caller means is the descriptor it has. */
static int open_socket(const struct call *call, const struct place *place) {
  char path[64];
  struct stat stat;
  for (int fd = 0; fd < 3; fd++) {
    snprintf(path, sizeof path, "%d/fd/%d", call->caller, fd);
    if (fstatat(proc_fd, path, &stat, 0) || stat.st_ino != place->stat.st_ino || stat.st_dev != place->stat.st_dev) continue;
    int copy = take_descriptor(call, fd);
    return copy < 0 ? -ENXIO : copy;
  }
  return -ENXIO;
}

static int hand_over(const struct call *call, int fd, int flags, bool created) {
  struct stat stat;
  /* SECURITY: what cannot be counted is not handed over. */
  if (ceilings.disk_bytes && (fstat(fd, &stat) || !usage_note_write(fd, &stat, created))) {
    report_violation("limit.disk", "too many files are open for writing");
    return close(fd), -ENOSPC;
  }
  if (created) usage_note_entry();
  if (!(flags & O_NONBLOCK)) fcntl(fd, F_SETFL, flags & (O_APPEND | O_ASYNC | O_DIRECT | O_NOATIME));
  int error = give(call, fd, flags);
  return error ? error : SENT;
}

static int open_found(const struct call *call, struct place *place, int flags, mode_t mode) {
  char link[32];
  if (S_ISSOCK(place->stat.st_mode)) {
    int fd = open_socket(call, place);
    return fd < 0 ? fd : hand_over(call, fd, flags | O_NONBLOCK, false);
  }
  bool unnamed = (flags & O_TMPFILE) == O_TMPFILE;
  snprintf(link, sizeof link, "self/fd/%d", place->found);
  /* Without a name `O_EXCL` means that it never gets one. */
  int wanted = flags & ~(O_CREAT | O_NOFOLLOW | (unnamed ? 0 : O_EXCL));
  if (S_ISFIFO(place->stat.st_mode) && !(flags & O_NONBLOCK)) return open_apart(call, link, wanted);
  /* SECURITY: in /proc the kernel asks who opens. We may look into ourselves and trace everybody; a copy of us may not. */
  if (is_on_proc(place->found) && !is_of_caller(place->found, call->caller)) return open_apart(call, link, wanted);
  if (unnamed) mode &= ~umask_of(call->caller);
  int fd = openat(proc_fd, link, wanted | O_NONBLOCK | O_CLOEXEC | O_NOCTTY, mode & 07777);
  return fd < 0 ? refused_outside(place, errno, "write") : hand_over(call, fd, flags, false);
}

static int open_named(const struct call *call, struct place *place, int flags, mode_t mode) {
  bool existed = place->found >= 0;
  if (existed && S_ISFIFO(place->stat.st_mode)) return open_found(call, place, flags, mode);
  if (existed && (flags & O_CREAT) && (flags & O_EXCL)) return -EEXIST;
  if (!existed && place->must_be_dir) return flags & O_CREAT ? -EISDIR : -ENOENT;
  if (existed && place->must_be_dir && !S_ISDIR(place->stat.st_mode)) return -ENOTDIR;
  if (is_on_proc(place->parent)) return existed ? open_found(call, place, flags, mode) : -ENOENT;
  mode &= ~umask_of(call->caller);
  int fd = openat(place->parent, place->name, flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY, mode & 07777);
  return fd < 0 ? refused_outside(place, errno, "write") : hand_over(call, fd, flags, !existed);
}

/* An open of a plain name in a plain directory, the usual case. Returns 1 more than SENT when it is not one. */
enum { NOT_PLAIN = 2 };

static int open_plain(const struct call *call, int dirfd, uint64_t address, int flags, mode_t mode) {
  struct place place;
  if (ceilings.disk_bytes || (flags & O_TMPFILE) == O_TMPFILE) return NOT_PLAIN;
  int result = locate(call, &place, dirfd, address, DO_NOT_LOOK);
  if (result) return result;
  if (place.parent < 0 || is_on_proc(place.parent)) result = NOT_PLAIN;
  else if (!(result = judge(&place, refuses_creation, "write"))) {
    if (flags & O_CREAT) mode &= ~umask_of(call->caller);
    int fd = openat(place.parent, place.name, flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY, mode & 07777);
    if (fd >= 0) result = hand_over(call, fd, flags, false);
    else result = errno == ELOOP || errno == ENXIO ? NOT_PLAIN : refused_outside(&place, errno, "write");
  }
  release(&place);
  return result;
}

/* SECURITY: a full disk takes no more. What is there can be read and removed, and the sandbox goes on. */
bool has_no_room(const struct place *place) {
  char path[PATH_MAX * 2];
  bool grows = place->found < 0 || S_ISREG(place->stat.st_mode) || S_ISDIR(place->stat.st_mode);
  if (!grows || !usage_is_full()) return false;
  if (place_path(place, path, sizeof path)) report_violation("limit.disk", "write %s", path);
  return true;
}

int do_open(const struct call *call, int dirfd, uint64_t address, int flags, mode_t mode) {
  struct place place;
  int result = open_plain(call, dirfd, address, flags, mode);
  if (result != NOT_PLAIN) return result;
  bool exclusive = (flags & O_CREAT) && (flags & O_EXCL);
  result = locate(call, &place, dirfd, address, (flags & O_NOFOLLOW) || exclusive ? KEEP_LINK : FOLLOW_LINK);
  if (result) return result;
  bool creates = (flags & O_CREAT) && place.found < 0;
  if ((result = judge(&place, creates ? refuses_creation : refuses_write, "write"))) ;
  else if (has_no_room(&place)) result = -ENOSPC;
  else if ((flags & O_TMPFILE) == O_TMPFILE && place.found >= 0) result = open_found(call, &place, flags, mode);
  else if (place.parent < 0) result = open_found(call, &place, flags, mode);
  else result = open_named(call, &place, flags, mode);
  release(&place);
  return result;
}

int done(int failed, const struct place *place, const char *what) {
  return failed ? refused_outside(place, errno, what) : 0;
}

int do_make(const struct call *call, int dirfd, uint64_t address, mode_t mode, dev_t dev, bool directory) {
  struct place place;
  int result = locate(call, &place, dirfd, address, KEEP_LINK);
  if (result) return result;
  mode &= ~umask_of(call->caller);
  if (place.found >= 0) result = -EEXIST;
  else if ((result = judge(&place, directory ? refuses_creation : refuses_arrival, "create"))) ;
  else if (has_no_room(&place)) result = -ENOSPC;
  else if (directory) result = done(mkdirat(place.parent, place.name, mode), &place, "create");
  else result = done(mknodat(place.parent, place.name, mode, dev), &place, "create");
  if (!result) usage_note_entry();
  release(&place);
  return result;
}

int do_unlink(const struct call *call, int dirfd, uint64_t address, int flags) {
  struct place place;
  int result = locate(call, &place, dirfd, address, KEEP_LINK);
  if (result) return result;
  bool directory = flags & AT_REMOVEDIR;
  if (place.parent < 0) result = directory ? -EINVAL : -EISDIR;
  else if (place.found >= 0 && (result = judge(&place, refuses_removal, "remove"))) ;
  else if (place.must_be_dir && !directory && place.found >= 0) result = S_ISDIR(place.stat.st_mode) ? -EISDIR : -ENOTDIR;
  else result = done(unlinkat(place.parent, place.name, flags), &place, "remove");
  if (!result) usage_note_removal();
  release(&place);
  return result;
}

/* A directory that leaves a dependency tree would carry names out that were exempt inside: let it be copied. */
static bool leaves_exemption(const struct place *from, const struct place *to) {
  char old[PATH_MAX * 2], new[PATH_MAX * 2];
  if (!S_ISDIR(from->stat.st_mode)) return false;
  if (!place_path(from, old, sizeof old) || !place_path(to, new, sizeof new)) return true;
  return is_exempt(old) && !is_exempt(new);
}

/* Whatever is moved, both names are judged for all that it may bring: a directory its inside, a link its target. */
static int judge_rename(const struct place *from, const struct place *to, bool exchange) {
  if (from->parent < 0 || to->parent < 0) return -EBUSY;
  if (from->found < 0 || (exchange && to->found < 0)) return -ENOENT;
  int error = judge(from, refuses_departure, "move");
  if (!error) error = judge(to, refuses_arrival, "replace");
  if (!error && exchange) error = judge(to, refuses_departure, "move");
  if (!error && exchange) error = judge(from, refuses_arrival, "replace");
  if (error) return error;
  if (leaves_exemption(from, to) || (exchange && leaves_exemption(to, from))) return -EXDEV;
  bool directories = S_ISDIR(from->stat.st_mode) && (!exchange || S_ISDIR(to->stat.st_mode));
  return (from->must_be_dir || to->must_be_dir) && !directories ? -ENOTDIR : 0;
}

int do_rename(const struct call *call, int from_dir, uint64_t from_path, int to_dir, uint64_t to_path, unsigned flags) {
  struct place from, to;
  int result = locate(call, &from, from_dir, from_path, KEEP_LINK);
  if (result) return result;
  if ((result = locate(call, &to, to_dir, to_path, KEEP_LINK))) return release(&from), result;
  bool exchange = flags & 2 /* RENAME_EXCHANGE */;
  result = judge_rename(&from, &to, exchange);
  if (!result) {
    result = done((int)syscall(SYS_renameat2, from.parent, from.name, to.parent, to.name, flags), &to, "move");
    bool same = from.stat.st_ino == to.stat.st_ino && from.stat.st_dev == to.stat.st_dev;
    if (!result && to.found >= 0 && !exchange && !same) usage_note_removal();
  }
  release(&from);
  release(&to);
  return result;
}

int do_link(const struct call *call, int from_dir, uint64_t from_path, int to_dir, uint64_t to_path, int flags) {
  struct place from, to;
  char path[PATH_MAX], link[64];
  int result = read_path(call, from_path, path);
  if (!result && !path[0] && (flags & AT_EMPTY_PATH)) {
    snprintf(path, sizeof path, "/proc/%d/fd/%d", call->caller, from_dir);
    flags |= AT_SYMLINK_FOLLOW;
  }
  if (!result) result = resolve(&from, call->caller, from_dir, path, flags & AT_SYMLINK_FOLLOW ? FOLLOW_LINK : KEEP_LINK);
  if (result) return result;
  if ((result = locate(call, &to, to_dir, to_path, KEEP_LINK))) return release(&from), result;
  snprintf(link, sizeof link, "/proc/self/fd/%d", from.found);
  if (to.parent < 0 || to.found >= 0) result = -EEXIST;
  else if (from.found < 0) result = -ENOENT;
  /* SECURITY: a second name for a protected file would be a way to write it. */
  else if ((result = judge(&from, refuses_write, "link")) || (result = judge(&to, refuses_arrival, "create"))) ;
  else if (from.parent < 0) result = done(linkat(AT_FDCWD, link, to.parent, to.name, AT_SYMLINK_FOLLOW), &to, "link");
  else result = done(linkat(from.parent, from.name, to.parent, to.name, 0), &to, "link");
  if (!result) usage_note_entry();
  release(&from);
  release(&to);
  return result;
}

int do_symlink(const struct call *call, uint64_t target_address, int dirfd, uint64_t address) {
  char target[PATH_MAX];
  struct place place;
  int result = read_path(call, target_address, target);
  if (!result) result = locate(call, &place, dirfd, address, KEEP_LINK);
  if (result) return result;
  if (place.parent < 0 || place.found >= 0) result = -EEXIST;
  else if ((result = judge(&place, refuses_arrival, "create"))) ;
  else if (has_no_room(&place)) result = -ENOSPC;
  else result = done(symlinkat(target, place.parent, place.name), &place, "create");
  if (!result) usage_note_entry();
  release(&place);
  return result;
}

int do_truncate(const struct call *call, uint64_t address, off_t length) {
  struct place place;
  int result = locate(call, &place, AT_FDCWD, address, FOLLOW_LINK);
  if (result) return result;
  char link[32];
  snprintf(link, sizeof link, "self/fd/%d", place.found);
  if (place.found < 0) result = -ENOENT;
  else if ((result = judge(&place, refuses_write, "write"))) ;
  else if (!S_ISREG(place.stat.st_mode)) result = S_ISDIR(place.stat.st_mode) ? -EISDIR : -EINVAL;
  else if (length > place.stat.st_size && has_no_room(&place)) result = -ENOSPC;
  else {
    int fd = openat(proc_fd, link, O_WRONLY | O_CLOEXEC | O_NONBLOCK);
    bool counted = fd < 0 || usage_note_write(fd, &place.stat, false);
    result = counted ? done(fd < 0 || ftruncate(fd, length), &place, "write") : -ENOSPC;
    if (fd >= 0) close(fd);
  }
  release(&place);
  return result;
}
