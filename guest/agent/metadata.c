#include "calls.h"

#include <sys/stat.h>
#include <sys/time.h>
#include <sys/xattr.h>
#include <utime.h>

/*
 * Modes, owners, times and extended attributes. What a protected file is called stays as it is, and so does what is
 * written about it.
 */

/* By a path, or by a descriptor where there is none: NULL, or empty and permitted to be. */
static int locate_at(const struct call *call, struct place *place, int dirfd, uint64_t address, int flags) {
  char path[PATH_MAX] = "", name[64];
  int error = address ? read_path(call, address, path) : 0;
  if (error) return error;
  if (path[0]) return resolve(place, call->caller, dirfd, path, flags & AT_SYMLINK_NOFOLLOW ? KEEP_LINK : FOLLOW_LINK);
  if (address && !(flags & AT_EMPTY_PATH)) return -ENOENT;
  if (!address && dirfd == AT_FDCWD) return -EFAULT;
  if (dirfd == AT_FDCWD) snprintf(name, sizeof name, "%d/cwd", call->caller);
  else snprintf(name, sizeof name, "%d/fd/%d", call->caller, dirfd);
  *place = (struct place){.parent = -1, .found = openat(proc_fd, name, O_PATH | O_CLOEXEC)};
  if (place->found >= 0 && !fstat(place->found, &place->stat)) return 0;
  release(place);
  return -EBADF;
}

static int locate_to_change(const struct call *call, struct place *place, int dirfd, uint64_t address, int flags, const char *what) {
  int error = locate_at(call, place, dirfd, address, flags);
  if (error) return error;
  error = place->found < 0 ? -ENOENT : judge(place, refuses_write, what);
  if (error) release(place);
  return error;
}

static int changed(int failed, struct place *place, const char *what) {
  int result = done(failed, place, what);
  release(place);
  return result;
}

static void link_of(const struct place *place, char *link, size_t size) {
  snprintf(link, size, "/proc/self/fd/%d", place->found);
}

int do_chmod(const struct call *call, int dirfd, uint64_t address, mode_t mode, int flags) {
  static const char what[] = "change the mode of";
  struct place place;
  char link[64];
  int error = locate_to_change(call, &place, dirfd, address, flags, what);
  if (error) return error;
  link_of(&place, link, sizeof link);
  if (S_ISLNK(place.stat.st_mode)) return release(&place), -EOPNOTSUPP;
  return changed(chmod(link, mode), &place, what);
}

int do_chown(const struct call *call, int dirfd, uint64_t address, uid_t uid, gid_t gid, int flags) {
  static const char what[] = "change the owner of";
  struct place place;
  int error = locate_to_change(call, &place, dirfd, address, flags, what);
  return error ? error : changed(fchownat(place.found, "", uid, gid, AT_EMPTY_PATH), &place, what);
}

/* The caller's times in the one form that the kernel has now. */
static int read_times(const struct call *call, uint64_t address, enum time_format format, struct timespec times[2]) {
  int64_t raw[4] = {0};
  int error = read_memory(call, address, raw, format == SECONDS ? 2 * sizeof *raw : sizeof raw);
  if (error) return error;
  for (int i = 0; i < 2; i++) {
    times[i].tv_sec = (time_t)(format == SECONDS ? raw[i] : raw[2 * i]);
    int64_t fraction = format == SECONDS ? 0 : raw[2 * i + 1];
    if (format == TIMEVALS && (fraction < 0 || fraction >= 1000000)) return -EINVAL;
    times[i].tv_nsec = (long)(format == TIMEVALS ? fraction * 1000 : fraction);
  }
  return 0;
}

int do_times(const struct call *call, int dirfd, uint64_t address, uint64_t times, enum time_format format, int flags) {
  static const char what[] = "change the times of";
  struct timespec wanted[2];
  struct place place;
  char link[64];
  int error = times ? read_times(call, times, format, wanted) : 0;
  if (!error) error = locate_to_change(call, &place, dirfd, address, flags, what);
  if (error) return error;
  const struct timespec *given = times ? wanted : NULL;
  int failed = (int)syscall(SYS_utimensat, place.found, "", given, AT_EMPTY_PATH);
  /* PLATFORM: before 5.8 only a path will do. */
  link_of(&place, link, sizeof link);
  if (failed && errno == EINVAL && !S_ISLNK(place.stat.st_mode)) failed = utimensat(AT_FDCWD, link, given, 0);
  return changed(failed, &place, what);
}

enum { ATTRIBUTE_NAME = 256, ATTRIBUTE_SIZE = 65536 };

/* A string of the caller's, as far as it can be read. */
static int read_name(const struct call *call, uint64_t address, char name[ATTRIBUTE_NAME]) {
  char text[PATH_MAX];
  int error = read_path(call, address, text);
  if (error) return error;
  return snprintf(name, ATTRIBUTE_NAME, "%s", text) >= ATTRIBUTE_NAME ? -ERANGE : 0;
}

static int locate_attribute(const struct call *call, struct place *place, int dirfd, uint64_t address, int flags, char *name) {
  int error = read_name(call, call->args[1], name);
  if (!error) error = locate_to_change(call, place, dirfd, address, flags, "change an attribute of");
  if (error || !S_ISLNK(place->stat.st_mode)) return error;
  release(place);
  return -EPERM; /* links take none from ordinary users */
}

/* SECURITY: what lies in attributes takes room on the disk too. */
static bool is_counted(const struct place *place, size_t size) {
  if (!ceilings.disk_bytes) return true;
  if (!S_ISREG(place->stat.st_mode)) return usage_note_bytes(size), true;
  return usage_note_write(place->found, &place->stat, false);
}

int do_set_attribute(const struct call *call, int dirfd, uint64_t address, int flags) {
  static char value[ATTRIBUTE_SIZE];
  char name[ATTRIBUTE_NAME], link[64];
  struct place place;
  size_t size = (size_t)call->args[3];
  if (size > sizeof value) return -E2BIG;
  int error = size ? read_memory(call, call->args[2], value, size) : 0;
  if (!error) error = locate_attribute(call, &place, dirfd, address, flags, name);
  if (error) return error;
  link_of(&place, link, sizeof link);
  if (has_no_room(&place) || !is_counted(&place, size)) return release(&place), -ENOSPC;
  return changed(setxattr(link, name, value, size, (int)call->args[4]), &place, "change an attribute of");
}

int do_remove_attribute(const struct call *call, int dirfd, uint64_t address, int flags) {
  char name[ATTRIBUTE_NAME], link[64];
  struct place place;
  int error = locate_attribute(call, &place, dirfd, address, flags, name);
  if (error) return error;
  link_of(&place, link, sizeof link);
  return changed(removexattr(link, name), &place, "change an attribute of");
}
