#include "files/attributes.h"
#include "files/files.h"
#include "files/tar.h"

#include <dirent.h>
#include <linux/stat.h>
#include <time.h>

_Noreturn void tar_fail(const char *what) {
  const char *name = errno == ENOENT    ? "ENOENT"
                     : errno == EROFS   ? "EROFS"
                     : errno == ENOTDIR ? "ENOTDIR"
                     : errno == ENOSPC  ? "ENOSPC"
                                        : "EIO";
  dprintf(2, "%s %s", name, what);
  _exit(1);
}

static void pad(long long size) {
  static const char zeros[BLOCK];
  if (size % BLOCK) write_output(zeros, (size_t)(BLOCK - size % BLOCK));
}

/* A value that does not fit into the field is repeated in a pax record. */
static void put_octal(char *field, size_t width, long long value) {
  for (size_t i = width - 1; i-- > 0; value /= 8) field[i] = (char)('0' + value % 8);
}

static void put_text(char *field, size_t width, const char *value) {
  size_t length = strlen(value);
  memcpy(field, value, length < width ? length : width);
}

static void put_header(struct header *header) {
  unsigned sum = 0;
  memcpy(header->magic, "ustar", 6);
  memcpy(header->version, "00", 2);
  memset(header->sum, ' ', sizeof header->sum);
  for (size_t i = 0; i < BLOCK; i++) sum += ((unsigned char *)header)[i];
  snprintf(header->sum, sizeof header->sum, "%06o", sum);
  write_output(header, BLOCK);
}

/* The length of a pax record includes the digits of the length itself. */
static size_t pax_record(char *at, size_t room, const char *key, const char *value) {
  size_t body = strlen(key) + strlen(value) + 3, length = body + 1;
  for (int i = 0; i < 3; i++) length = body + (size_t)snprintf(NULL, 0, "%zu", length);
  return (size_t)snprintf(at, room, "%zu %s=%s\n", length, key, value);
}

static void put_pax(const char *name, const char *link, long long size, const char *attributes) {
  char length[24];
  static char records[MAX_PAX];
  size_t used = 0;
  if (strlen(name) > 100) used += pax_record(records, sizeof records, "path", name);
  if (strlen(link) > 100) used += pax_record(records + used, sizeof records - used, "linkpath", link);
  snprintf(length, sizeof length, "%lld", size);
  if (size > 077777777777) used += pax_record(records + used, sizeof records - used, "size", length);
  if (*attributes) used += pax_record(records + used, sizeof records - used, TAR_ATTRIBUTES, attributes);
  if (!used) return;
  struct header header = {.type = 'x'};
  memcpy(header.name, "pax", 3);
  put_octal(header.mode, sizeof header.mode, 0644);
  put_octal(header.size, sizeof header.size, (long long)used);
  put_header(&header);
  write_output(records, used);
  pad((long long)used);
}

/* What cannot be read is left out, unless the archive replaces the directory. */
static bool whole;

static void leave_out(const char *path) {
  if (!whole) return;
  dprintf(2, "UNREADABLE %s", path);
  _exit(1);
}

static void put_body(const char *path, long long size) {
  static char chunk[CHUNK];
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  for (long long left = size; left > 0;) {
    ssize_t got = fd < 0 ? 0 : read(fd, chunk, left < CHUNK ? (size_t)left : CHUNK);
    if (got < 0 || fd < 0) leave_out(path);
    /* A file that shrinks while it is read is padded with zeros: the header has announced its size. */
    if (got <= 0) memset(chunk, 0, sizeof chunk), got = left < CHUNK ? (ssize_t)left : CHUNK;
    write_output(chunk, (size_t)got);
    left -= got;
  }
  if (fd >= 0) close(fd);
  pad(size);
}

/* In nanoseconds. Of a file that has not changed since then only the name is sent. */
static long long since;

static bool is_unchanged(const struct stat *stat) {
  return (long long)stat->st_ctim.tv_sec * 1000000000 + stat->st_ctim.tv_nsec <= since;
}

static void put_entry(const char *path, const char *name, const struct stat *stat) {
  char link[PATH_MAX] = "", attributes[ATTRIBUTES_SIZE] = "";
  bool regular = S_ISREG(stat->st_mode), unchanged = regular && is_unchanged(stat);
  if (!regular && !S_ISDIR(stat->st_mode) && !S_ISLNK(stat->st_mode)) return;
  if (S_ISLNK(stat->st_mode)) {
    ssize_t length = readlink(path, link, sizeof link - 1);
    if (length < 0) return leave_out(path);
    link[length] = 0;
  }
  if (regular && access(path, R_OK)) {
    if (!since) return leave_out(path);
    unchanged = true; /* it exists, so the host must not take it for deleted */
  }
  if (regular) read_attributes(path, attributes);
  put_pax(name, link, regular && !unchanged ? (long long)stat->st_size : 0, attributes);
  struct header header = {.type = unchanged ? TAR_TYPE_SAME : regular ? '0' : S_ISDIR(stat->st_mode) ? '5' : '2'};
  put_text(header.name, sizeof header.name, name);
  put_text(header.link, sizeof header.link, link);
  put_octal(header.mode, sizeof header.mode, stat->st_mode & 07777);
  put_octal(header.uid, sizeof header.uid, 0);
  put_octal(header.gid, sizeof header.gid, 0);
  put_octal(header.size, sizeof header.size, regular && !unchanged ? (long long)stat->st_size : 0);
  put_octal(header.mtime, sizeof header.mtime, (long long)stat->st_mtime);
  put_header(&header);
  if (regular && !unchanged) put_body(path, (long long)stat->st_size);
}

/* The content of this directory cannot be read; the host must not take it for deleted. */
static void put_unreadable(const char *name) {
  struct header header = {.type = TAR_TYPE_UNREAD};
  put_pax(name, "", 0, "");
  put_text(header.name, sizeof header.name, name);
  put_header(&header);
}

/* SECURITY: a mount inside the directory belongs to somebody else; an archive of it would overwrite it when it is unpacked. */
static bool is_mount(const char *path, const struct stat *stat, dev_t outer) {
  struct statx extended;
  if (syscall(SYS_statx, AT_FDCWD, path, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT, STATX_TYPE, &extended))
    return stat->st_dev != outer;
  if (extended.stx_attributes_mask & STATX_ATTR_MOUNT_ROOT) return extended.stx_attributes & STATX_ATTR_MOUNT_ROOT;
  return stat->st_dev != outer;
}

static dev_t device_of(int fd) {
  struct stat stat;
  return fstat(fd, &stat) ? 0 : stat.st_dev;
}

static void pack_below(const char *path, const char *relative) {
  DIR *directory = opendir(path);
  if (!directory) {
    if (!*relative) tar_fail(path);
    if (since) put_unreadable(relative);
    else leave_out(path);
    return;
  }
  for (struct dirent *entry; (entry = readdir(directory));) {
    char inner[PATH_MAX], name[PATH_MAX];
    struct stat stat;
    if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
    if (snprintf(inner, sizeof inner, "%s/%s", path, entry->d_name) >= PATH_MAX || lstat(inner, &stat)) {
      leave_out(inner);
      continue;
    }
    snprintf(name, sizeof name, "%s%s%s", relative, *relative ? "/" : "", entry->d_name);
    put_entry(inner, name, &stat);
    if (!S_ISDIR(stat.st_mode) || (!since && is_mount(inner, &stat, device_of(dirfd(directory))))) continue;
    pack_below(inner, name);
  }
  closedir(directory);
}

int pack_files(char **argv) {
  static const char end[2 * BLOCK];
  pack_below(argv[1], "");
  write_output(end, sizeof end);
  return 0;
}

int pack_whole(char **argv) {
  whole = true;
  return pack_files(argv);
}

/* Like pack_files, but with content only for what changed since argv[2]. The host finds deletions by the names. */
int pack_changes(char **argv) {
  struct timespec now;
  struct header header = {.type = TAR_TYPE_TIME, .name = "time"};
  since = strtoll(argv[2], NULL, 10);
  /* The first entry holds the current time of the clock that stamps files; the next call passes it as argv[2]. */
  clock_gettime(CLOCK_REALTIME_COARSE, &now);
  snprintf(header.link, sizeof header.link, "%lld", (long long)now.tv_sec * 1000000000 + now.tv_nsec - 1);
  put_header(&header);
  return pack_files(argv);
}
