#include "launch/launch.h"

#include <dirent.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>

/*
 * Lists the upper directory of an overlay, one record per entry: kind mode size opaque NUL path NUL target NUL. A
 * whiteout marks a deleted original. Runs on the host, on a tree that commands wrote: opens only directories and
 * follows no link.
 */

static bool is_opaque(int fd) {
  char value[2] = "", path[64];
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  return getxattr(path, "user.overlay.opaque", value, sizeof value) > 0 && (value[0] == 'y' || value[0] == 'x');
}

static char kind_of(const struct stat *stat) {
  if (S_ISCHR(stat->st_mode) && stat->st_rdev == makedev(0, 0)) return OVERLAY_KIND_WHITEOUT;
  if (S_ISREG(stat->st_mode)) return OVERLAY_KIND_FILE;
  if (S_ISDIR(stat->st_mode)) return OVERLAY_KIND_DIR;
  return S_ISLNK(stat->st_mode) ? OVERLAY_KIND_LINK : OVERLAY_KIND_OTHER;
}

static void print_record(const struct stat *stat, bool opaque, const char *path, const char *target) {
  printf("%c %o %lld %d", kind_of(stat), stat->st_mode & 07777, (long long)stat->st_size, opaque);
  putchar(0);
  fputs(path, stdout);
  putchar(0);
  fputs(target, stdout);
  putchar(0);
}

static int list_directory_changes(int directory, const char *prefix) {
  DIR *entries = fdopendir(directory);
  if (!entries) return 1;
  for (struct dirent *entry; (entry = readdir(entries));) {
    char path[PATH_MAX], target[PATH_MAX] = "";
    struct stat stat;
    if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
    if (snprintf(path, sizeof path, "%s%s%s", prefix, *prefix ? "/" : "", entry->d_name) >= PATH_MAX) return 1;
    if (fstatat(directory, entry->d_name, &stat, AT_SYMLINK_NOFOLLOW)) return 1;
    if (S_ISLNK(stat.st_mode)) {
      ssize_t length = readlinkat(directory, entry->d_name, target, sizeof target - 1);
      target[length < 0 ? 0 : length] = 0;
    }
    int inner =
        S_ISDIR(stat.st_mode) ? openat(directory, entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
    print_record(&stat, inner >= 0 && is_opaque(inner), path, target);
    if (S_ISDIR(stat.st_mode) && (inner < 0 || list_directory_changes(inner, path))) return 1;
  }
  closedir(entries);
  return 0;
}

int list_overlay_changes(const char *upper) {
  int directory = open(upper, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (directory < 0 || list_directory_changes(directory, "")) {
    fprintf(stderr, "cannot read %s: %s\n", upper, strerror(errno));
    return 1;
  }
  return fflush(stdout) ? 1 : 0;
}
