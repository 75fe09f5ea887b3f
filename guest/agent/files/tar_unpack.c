#include "files/files.h"
#include "files/tar.h"

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
    if (!read_input(nothing, BLOCK)) errno = EIO, tar_fail("tar");
}

/* A long name, link target, size and metadata from extension headers; they apply to the next entry. */
static char long_name[PATH_MAX], long_link[PATH_MAX];
static long long long_size = -1;
static char attributes[ATTRIBUTES_SIZE];

static void read_long_name(char *into, long long size) {
  char block[BLOCK];
  if (size >= PATH_MAX) errno = EIO, tar_fail("tar");
  for (long long done = 0; done < size; done += BLOCK) {
    if (!read_input(block, BLOCK)) errno = EIO, tar_fail("tar");
    memcpy(into + done, block, (size_t)(size - done < BLOCK ? size - done : BLOCK));
  }
  into[size] = 0;
}

static void read_pax(long long size) {
  static char records[MAX_PAX + BLOCK];
  if (size >= (long long)sizeof records - BLOCK) return skip(size);
  for (long long done = 0; done < size; done += BLOCK)
    if (!read_input(records + done, BLOCK)) errno = EIO, tar_fail("tar");
  for (char *at = records, *end = records + size; at < end;) {
    char *key;
    long length = strtol(at, &key, 10);
    if (length <= 0 || length > end - at || *key != ' ') return;
    at[length - 1] = 0;
    if (!strncmp(key + 1, "path=", 5)) snprintf(long_name, sizeof long_name, "%s", key + 6);
    if (!strncmp(key + 1, "linkpath=", 9)) snprintf(long_link, sizeof long_link, "%s", key + 10);
    if (!strncmp(key + 1, "size=", 5)) long_size = strtoll(key + 6, NULL, 10);
    if (!strncmp(key + 1, TAR_ATTRIBUTES "=", sizeof TAR_ATTRIBUTES))
      snprintf(attributes, sizeof attributes, "%s", key + 1 + sizeof TAR_ATTRIBUTES);
    at += length;
  }
}

/* SECURITY: extracts nothing outside of the directory and follows no symbolic link. */
static int open_parent(int root, char *name, char **last) {
  int at = fcntl(root, F_DUPFD_CLOEXEC, 3);
  for (;;) {
    name += strspn(name, "/");
    size_t length = strcspn(name, "/");
    bool more = name[length] && name[length + strspn(name + length, "/")];
    if (length == 2 && !strncmp(name, "..", 2)) errno = EPERM, tar_fail(name);
    if (!more) {
      name[length] = 0;
      *last = name;
      return at;
    }
    name[length] = 0;
    if (strcmp(name, ".")) {
      if (mkdirat(at, name, 0755) && errno != EEXIST) tar_fail(name);
      int next = openat(at, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
      if (next < 0) tar_fail(name);
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
  if (fd < 0) tar_fail(name);
  if (attributes[0]) replace_attributes(fd, attributes); /* a file system without attributes still gets the file */
  for (long long left = size; left > 0;) {
    size_t part = left < CHUNK ? (size_t)left : CHUNK;
    if (!read_input(chunk, part)) errno = EIO, tar_fail("tar");
    if (write(fd, chunk, part) != (ssize_t)part) tar_fail(name);
    left -= (long long)part;
  }
  struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = modified}};
  if (modified > 0) futimens(fd, times);
  close(fd);
  char rest[BLOCK];
  if (size % BLOCK && !read_input(rest, (size_t)(BLOCK - size % BLOCK))) errno = EIO, tar_fail("tar");
}

static void extract_entry(int root, const struct header *header, char *name, const char *link, long long size) {
  char *last;
  mode_t mode = (mode_t)octal(header->mode, sizeof header->mode) & 0777;
  int parent = open_parent(root, name, &last);
  bool has_no_name = !*last || !strcmp(last, ".");
  if (header->type == '5') {
    if (!has_no_name && mkdirat(parent, last, mode | 0700) && errno != EEXIST) tar_fail(last);
    skip(size);
  } else if (has_no_name) skip(size);
  else if (header->type == '2') {
    unlinkat(parent, last, 0);
    if (symlinkat(link, parent, last)) tar_fail(last);
    skip(size);
  } else if (header->type == '0' || header->type == 0)
    read_body(parent, last, mode, size, (time_t)octal(header->mtime, sizeof header->mtime));
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
  if (mkdir(argv[1], 0755) && errno != EEXIST) tar_fail(argv[1]);
  int root = open(argv[1], O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (root < 0) tar_fail(argv[1]);
  while (read_input(&header, BLOCK)) {
    char name[PATH_MAX], link[PATH_MAX];
    long long size = octal(header.size, sizeof header.size);
    if (!header.name[0]) continue;
    if (size < 0) errno = EIO, tar_fail("tar");
    if (header.type == 'x') read_pax(size);
    else if (header.type == 'g') skip(size);
    else if (header.type == 'L') read_long_name(long_name, size);
    else if (header.type == 'K') read_long_name(long_link, size);
    else {
      full_name(&header, name);
      snprintf(link, sizeof link, "%.*s", (int)(long_link[0] ? PATH_MAX - 1 : 100),
               long_link[0] ? long_link : header.link);
      if (long_size >= 0) size = long_size;
      long_name[0] = long_link[0] = 0;
      long_size = -1;
      extract_entry(root, &header, name, link, size);
      attributes[0] = 0;
    }
  }
  return 0;
}
