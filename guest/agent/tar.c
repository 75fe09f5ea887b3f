#include "agent.h"

#include <dirent.h>
#include <sys/sysmacros.h>
#include <time.h>

/* A directory as a tar stream and back: ustar, with pax records for what does not fit into it. */

enum { BLOCK = 512 };

struct header {
  char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], sum[8], type, link[100];
  char magic[6], version[2], user[32], group[32], major[8], minor[8], prefix[155], rest[12];
};

_Static_assert(sizeof(struct header) == BLOCK, "a tar header is one block");

void write_output(const void *data, size_t length);

static _Noreturn void fail(const char *what) {
  const char *name = errno == ENOENT ? "ENOENT" : errno == EROFS ? "EROFS" : errno == ENOTDIR ? "ENOTDIR" : errno == ENOSPC ? "ENOSPC" : "EIO";
  dprintf(2, "%s %s", name, what);
  _exit(1);
}

static void pad(long long size) {
  static const char zeros[BLOCK];
  if (size % BLOCK) write_output(zeros, (size_t)(BLOCK - size % BLOCK));
}

/* What does not fit stands in a pax record as well. */
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

/* One pax record counts its own length. */
static size_t pax_record(char *at, size_t room, const char *key, const char *value) {
  size_t body = strlen(key) + strlen(value) + 3, length = body + 1;
  for (int i = 0; i < 3; i++) length = body + (size_t)snprintf(NULL, 0, "%zu", length);
  return (size_t)snprintf(at, room, "%zu %s=%s\n", length, key, value);
}

static void put_pax(const char *name, const char *link, long long size) {
  char length[24];
  static char records[PATH_MAX * 2 + 64];
  size_t used = 0;
  if (strlen(name) > 100) used += pax_record(records, sizeof records, "path", name);
  if (strlen(link) > 100) used += pax_record(records + used, sizeof records - used, "linkpath", link);
  snprintf(length, sizeof length, "%lld", size);
  if (size > 077777777777) used += pax_record(records + used, sizeof records - used, "size", length);
  if (!used) return;
  struct header header = {.type = 'x'};
  memcpy(header.name, "pax", 3);
  put_octal(header.mode, sizeof header.mode, 0644);
  put_octal(header.size, sizeof header.size, (long long)used);
  put_header(&header);
  write_output(records, used);
  pad((long long)used);
}

static void put_body(const char *path, long long size) {
  static char chunk[CHUNK];
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  for (long long left = size; left > 0;) {
    ssize_t got = fd < 0 ? 0 : read(fd, chunk, left < CHUNK ? (size_t)left : CHUNK);
    /* A file that shrinks meanwhile is filled up: the header has promised its size. */
    if (got <= 0) memset(chunk, 0, sizeof chunk), got = left < CHUNK ? (ssize_t)left : CHUNK;
    write_output(chunk, (size_t)got);
    left -= got;
  }
  if (fd >= 0) close(fd);
  pad(size);
}

/* In nanoseconds; a file that did not change since then is only named. */
static long long since;

static bool is_unchanged(const struct stat *stat) {
  return (long long)stat->st_ctim.tv_sec * 1000000000 + stat->st_ctim.tv_nsec <= since;
}

static void put_entry(const char *path, const char *name, const struct stat *stat) {
  char link[PATH_MAX] = "";
  bool regular = S_ISREG(stat->st_mode), unchanged = regular && is_unchanged(stat);
  if (!regular && !S_ISDIR(stat->st_mode) && !S_ISLNK(stat->st_mode)) return;
  if (S_ISLNK(stat->st_mode)) {
    ssize_t length = readlink(path, link, sizeof link - 1);
    if (length < 0) return;
    link[length] = 0;
  }
  if (regular && access(path, R_OK)) {
    if (!since) return;
    unchanged = true; /* it is there all the same */
  }
  put_pax(name, link, regular && !unchanged ? (long long)stat->st_size : 0);
  struct header header = {.type = unchanged ? 'S' : regular ? '0' : S_ISDIR(stat->st_mode) ? '5' : '2'};
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

/* What lies below cannot be told; that must not look as if it were gone. */
static void put_unreadable(const char *name) {
  struct header header = {.type = 'U'};
  put_pax(name, "", 0);
  put_text(header.name, sizeof header.name, name);
  put_header(&header);
}

static void pack_below(const char *path, const char *relative) {
  DIR *directory = opendir(path);
  if (!directory) {
    if (!*relative) fail(path);
    if (since) put_unreadable(relative);
    return;
  }
  for (struct dirent *entry; (entry = readdir(directory));) {
    char inner[PATH_MAX], name[PATH_MAX];
    struct stat stat;
    if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
    if (snprintf(inner, sizeof inner, "%s/%s", path, entry->d_name) >= PATH_MAX || lstat(inner, &stat)) continue;
    snprintf(name, sizeof name, "%s%s%s", relative, *relative ? "/" : "", entry->d_name);
    put_entry(inner, name, &stat);
    if (S_ISDIR(stat.st_mode)) pack_below(inner, name);
  }
  closedir(directory);
}

int pack_files(char **argv) {
  static const char end[2 * BLOCK];
  pack_below(argv[1], "");
  write_output(end, sizeof end);
  return 0;
}

/* The same, with the content only of what changed: whoever knows the rest sees by the names what is gone. */
int pack_changes(char **argv) {
  struct timespec now;
  struct header header = {.type = 'T', .name = "time"};
  since = strtoll(argv[2], NULL, 10);
  /* First of all what time it is by the clock that stamps files: the next question is about what came after. */
  clock_gettime(CLOCK_REALTIME_COARSE, &now);
  snprintf(header.link, sizeof header.link, "%lld", (long long)now.tv_sec * 1000000000 + now.tv_nsec - 1);
  put_header(&header);
  return pack_files(argv);
}

static bool read_input(void *data, size_t length) {
  for (char *at = data; length > 0;) {
    ssize_t got = read(0, at, length);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    length -= (size_t)got;
  }
  return true;
}

static long long octal(const char *field, size_t width) {
  char text[16] = "";
  memcpy(text, field, width < sizeof text - 1 ? width : sizeof text - 1);
  return strtoll(text, NULL, 8);
}

static void skip(long long size) {
  char nothing[BLOCK];
  for (long long left = size / BLOCK + (size % BLOCK != 0); left > 0; left--)
    if (!read_input(nothing, BLOCK)) errno = EIO, fail("tar");
}

/* Names that the next entry has instead of its own. */
static char long_name[PATH_MAX], long_link[PATH_MAX];
static long long long_size = -1;

static void read_long_name(char *into, long long size) {
  char block[BLOCK];
  if (size >= PATH_MAX) errno = EIO, fail("tar");
  for (long long done = 0; done < size; done += BLOCK) {
    if (!read_input(block, BLOCK)) errno = EIO, fail("tar");
    memcpy(into + done, block, (size_t)(size - done < BLOCK ? size - done : BLOCK));
  }
  into[size] = 0;
}

static void read_pax(long long size) {
  static char records[PATH_MAX * 2 + BLOCK];
  if (size >= (long long)sizeof records - BLOCK) return skip(size);
  for (long long done = 0; done < size; done += BLOCK)
    if (!read_input(records + done, BLOCK)) errno = EIO, fail("tar");
  for (char *at = records, *end = records + size; at < end;) {
    char *key;
    long length = strtol(at, &key, 10);
    if (length <= 0 || length > end - at || *key != ' ') return;
    at[length - 1] = 0;
    if (!strncmp(key + 1, "path=", 5)) snprintf(long_name, sizeof long_name, "%s", key + 6);
    if (!strncmp(key + 1, "linkpath=", 9)) snprintf(long_link, sizeof long_link, "%s", key + 10);
    if (!strncmp(key + 1, "size=", 5)) long_size = strtoll(key + 6, NULL, 10);
    at += length;
  }
}

/* SECURITY: nothing is unpacked above the directory, and no link is followed on the way. */
static int open_parent(int root, char *name, char **last) {
  int at = fcntl(root, F_DUPFD_CLOEXEC, 3);
  for (;;) {
    name += strspn(name, "/");
    size_t length = strcspn(name, "/");
    bool more = name[length] && name[length + strspn(name + length, "/")];
    if (length == 2 && !strncmp(name, "..", 2)) errno = EPERM, fail(name);
    if (!more) {
      name[length] = 0;
      *last = name;
      return at;
    }
    name[length] = 0;
    if (strcmp(name, ".")) {
      if (mkdirat(at, name, 0755) && errno != EEXIST) fail(name);
      int next = openat(at, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
      if (next < 0) fail(name);
      close(at);
      at = next;
    }
    name += length + 1;
  }
}

static void read_body(int parent, const char *name, mode_t mode, long long size, time_t modified) {
  static char chunk[CHUNK];
  unlinkat(parent, name, 0);
  int fd = openat(parent, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
  if (fd < 0) fail(name);
  for (long long left = size; left > 0;) {
    size_t part = left < CHUNK ? (size_t)left : CHUNK;
    if (!read_input(chunk, part)) errno = EIO, fail("tar");
    if (write(fd, chunk, part) != (ssize_t)part) fail(name);
    left -= (long long)part;
  }
  struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = modified}};
  if (modified > 0) futimens(fd, times);
  close(fd);
  char rest[BLOCK];
  if (size % BLOCK && !read_input(rest, (size_t)(BLOCK - size % BLOCK))) errno = EIO, fail("tar");
}

static void extract_entry(int root, const struct header *header, char *name, const char *link, long long size) {
  char *last;
  mode_t mode = (mode_t)octal(header->mode, sizeof header->mode) & 0777;
  int parent = open_parent(root, name, &last);
  bool has_no_name = !*last || !strcmp(last, ".");
  if (header->type == '5') {
    if (!has_no_name && mkdirat(parent, last, mode | 0700) && errno != EEXIST) fail(last);
    skip(size);
  } else if (has_no_name) skip(size);
  else if (header->type == '2') {
    unlinkat(parent, last, 0);
    if (symlinkat(link, parent, last)) fail(last);
    skip(size);
  } else if (header->type == '0' || header->type == 0) read_body(parent, last, mode, size, (time_t)octal(header->mtime, sizeof header->mtime));
  else skip(size);
  close(parent);
}

static void full_name(const struct header *header, char *name) {
  if (long_name[0]) snprintf(name, PATH_MAX, "%s", long_name);
  else if (header->prefix[0] && !memcmp(header->magic, "ustar", 5))
    snprintf(name, PATH_MAX, "%.155s/%.100s", header->prefix, header->name);
  else snprintf(name, PATH_MAX, "%.100s", header->name);
}

int unpack_files(char **argv) {
  struct header header;
  if (mkdir(argv[1], 0755) && errno != EEXIST) fail(argv[1]);
  int root = open(argv[1], O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (root < 0) fail(argv[1]);
  while (read_input(&header, BLOCK)) {
    char name[PATH_MAX], link[PATH_MAX];
    long long size = octal(header.size, sizeof header.size);
    if (!header.name[0]) continue;
    if (size < 0) errno = EIO, fail("tar");
    if (header.type == 'x') read_pax(size);
    else if (header.type == 'g') skip(size);
    else if (header.type == 'L') read_long_name(long_name, size);
    else if (header.type == 'K') read_long_name(long_link, size);
    else {
      full_name(&header, name);
      snprintf(link, sizeof link, "%.*s", (int)(long_link[0] ? PATH_MAX - 1 : 100), long_link[0] ? long_link : header.link);
      if (long_size >= 0) size = long_size;
      long_name[0] = long_link[0] = 0;
      long_size = -1;
      extract_entry(root, &header, name, link, size);
    }
  }
  return 0;
}
