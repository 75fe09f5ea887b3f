#include "files/files.h"

#include "files/attributes.h"

#include <dirent.h>
#include <sys/inotify.h>

/* The file operations of files.h, except for tar. The host's half is src/backends/guest-files.ts. */

static const struct {
  int error;
  const char *name;
} ERROR_NAMES[] = {{ENOENT, "ENOENT"},        {EACCES, "EACCES"},
                   {EPERM, "EPERM"},          {EEXIST, "EEXIST"},
                   {ENOTDIR, "ENOTDIR"},      {EISDIR, "EISDIR"},
                   {EROFS, "EROFS"},          {ENOSPC, "ENOSPC"},
                   {ELOOP, "ELOOP"},          {ENOTEMPTY, "ENOTEMPTY"},
                   {EXDEV, "EXDEV"},          {EINVAL, "EINVAL"},
                   {EFBIG, "EFBIG"},          {ENAMETOOLONG, "ENAMETOOLONG"},
                   {EOPNOTSUPP, "EOPNOTSUPP"}};

static _Noreturn void fail(const char *what) {
  const char *name = "EIO";
  for (size_t i = 0; i < LENGTH(ERROR_NAMES); i++)
    if (ERROR_NAMES[i].error == errno) name = ERROR_NAMES[i].name;
  dprintf(2, "%s %s", name, what);
  _exit(1);
}

void write_output(const void *data, size_t length) {
  for (const char *at = data; length > 0;) {
    ssize_t written = write(1, at, length);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) _exit(1);
    at += written;
    length -= (size_t)written;
  }
}

static char chunk[CHUNK];

static int read_file(char **argv) {
  int fd = open(argv[1], O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  struct stat stat;
  if (fd < 0 || fstat(fd, &stat)) fail(argv[1]);
  if (S_ISDIR(stat.st_mode)) errno = EISDIR, fail(argv[1]);
  if (!S_ISREG(stat.st_mode)) errno = EINVAL, fail(argv[1]);
  off_t offset = (off_t)strtoll(argv[2], NULL, 10);
  long long left = argv[3][0] ? strtoll(argv[3], NULL, 10) : LLONG_MAX;
  while (left > 0) {
    ssize_t got = pread(fd, chunk, left < CHUNK ? (size_t)left : CHUNK, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(argv[1]);
    if (got == 0) return 0;
    write_output(chunk, (size_t)got);
    offset += got;
    left -= got;
  }
  return 0;
}

static void make_parents(const char *path) {
  char partial[PATH_MAX];
  if (snprintf(partial, sizeof partial, "%s", path) >= PATH_MAX) errno = ENAMETOOLONG, fail(path);
  for (char *slash = partial + 1; (slash = strchr(slash, '/')); slash++) {
    *slash = 0;
    if (mkdir(partial, 0755) && errno != EEXIST) {
      struct stat stat;
      int error = errno;
      if (lstat(partial, &stat)) errno = error, fail(partial);
    }
    *slash = '/';
  }
}

static ssize_t read_input(void) {
  ssize_t got;
  do got = read(0, chunk, sizeof chunk);
  while (got < 0 && errno == EINTR);
  return got;
}

static int write_file(char **argv) {
  make_parents(argv[1]);
  int fd = open(argv[1], O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK, 0644);
  struct stat stat;
  if (fd < 0 || fstat(fd, &stat)) fail(argv[1]);
  if (!S_ISREG(stat.st_mode)) errno = EINVAL, fail(argv[1]);
  if (!replace_attributes(fd, argv[2])) fail(argv[1]);
  for (ssize_t got; (got = read_input()) > 0;)
    for (ssize_t done = 0; done < got;) {
      ssize_t written = write(fd, chunk + done, (size_t)(got - done));
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) fail(argv[1]);
      done += written;
    }
  if (close(fd)) fail(argv[1]);
  return 0;
}

static char kind_of(mode_t mode) {
  return S_ISREG(mode)   ? FILE_KIND_FILE
         : S_ISDIR(mode) ? FILE_KIND_DIR
         : S_ISLNK(mode) ? FILE_KIND_LINK
                         : FILE_KIND_OTHER;
}

/* kind mode uid gid size mtime-in-ms NUL path NUL target NUL attributes NUL */
static void write_info(const char *path, const struct stat *stat) {
  char head[160], target[PATH_MAX] = "", attributes[ATTRIBUTES_SIZE] = "";
  if (S_ISLNK(stat->st_mode)) {
    ssize_t length = readlink(path, target, sizeof target - 1);
    target[length < 0 ? 0 : length] = 0;
  }
  long long modified = (long long)stat->st_mtim.tv_sec * 1000 + stat->st_mtim.tv_nsec / 1000000;
  int length = snprintf(head, sizeof head, "%c %o %u %u %lld %lld", kind_of(stat->st_mode), stat->st_mode & 07777,
                        stat->st_uid, stat->st_gid, (long long)stat->st_size, modified);
  write_output(head, (size_t)length + 1);
  write_output(path, strlen(path) + 1);
  write_output(target, strlen(target) + 1);
  if (S_ISREG(stat->st_mode)) read_attributes(path, attributes);
  write_output(attributes, strlen(attributes) + 1);
}

static int stat_file(char **argv) {
  struct stat stat;
  if (lstat(argv[1], &stat)) fail(argv[1]);
  write_info(argv[1], &stat);
  return 0;
}

static void list_below(const char *path, int depth) {
  DIR *directory = opendir(path);
  if (!directory) return;
  for (struct dirent *entry; (entry = readdir(directory));) {
    char inner[PATH_MAX];
    struct stat stat;
    if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
    const char *between = path[strlen(path) - 1] == '/' ? "" : "/";
    if (snprintf(inner, sizeof inner, "%s%s%s", path, between, entry->d_name) >= PATH_MAX || lstat(inner, &stat))
      continue;
    write_info(inner, &stat);
    if (S_ISDIR(stat.st_mode) && depth > 1) list_below(inner, depth - 1);
  }
  closedir(directory);
}

static int list_directory(char **argv) {
  DIR *directory = opendir(argv[1]);
  if (!directory) fail(argv[1]);
  closedir(directory);
  list_below(argv[1], atoi(argv[2]));
  return 0;
}

static int make_directory(char **argv) {
  make_parents(argv[1]);
  if (mkdir(argv[1], 0755)) fail(argv[1]);
  return 0;
}

static int move_file(char **argv) {
  make_parents(argv[2]);
  if (rename(argv[1], argv[2])) fail(argv[1]);
  return 0;
}

static void remove_below(const char *path) {
  DIR *directory = opendir(path);
  if (!directory) fail(path);
  for (struct dirent *entry; (entry = readdir(directory));) {
    char inner[PATH_MAX];
    struct stat stat;
    if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
    if (snprintf(inner, sizeof inner, "%s/%s", path, entry->d_name) >= PATH_MAX) errno = ENAMETOOLONG, fail(path);
    if (lstat(inner, &stat)) continue;
    if (S_ISDIR(stat.st_mode)) remove_below(inner);
    else if (unlink(inner)) fail(inner);
  }
  closedir(directory);
  if (rmdir(path)) fail(path);
}

static int remove_file(char **argv) {
  struct stat stat;
  if (lstat(argv[1], &stat)) fail(argv[1]);
  if (S_ISDIR(stat.st_mode)) remove_below(argv[1]);
  else if (unlink(argv[1])) fail(argv[1]);
  return 0;
}

/* Watched directories by inotify descriptor; paths are relative to the first one. */
static struct {
  int number;
  char *path;
} watched[8192];
static int watched_count;

enum { INTEREST = IN_CREATE | IN_MODIFY | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_ATTRIB | IN_ONLYDIR };

static void watch_directory(int inotify, const char *root, const char *relative, bool recursive) {
  char path[PATH_MAX];
  snprintf(path, sizeof path, "%s%s%s", root, *relative ? "/" : "", relative);
  int number = inotify_add_watch(inotify, path, INTEREST);
  if (number < 0 && !*relative) fail(root);
  if (number < 0 || watched_count >= 8192) return;
  watched[watched_count].number = number;
  watched[watched_count++].path = strdup(relative);
  DIR *directory = recursive ? opendir(path) : NULL;
  if (!directory) return;
  for (struct dirent *entry; (entry = readdir(directory));) {
    char inner[PATH_MAX];
    struct stat stat;
    if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
    if (fstatat(dirfd(directory), entry->d_name, &stat, AT_SYMLINK_NOFOLLOW) || !S_ISDIR(stat.st_mode)) continue;
    snprintf(inner, sizeof inner, "%s%s%s", relative, *relative ? "/" : "", entry->d_name);
    watch_directory(inotify, root, inner, true);
  }
  closedir(directory);
}

static const char *watched_path(int number) {
  for (int i = watched_count - 1; i >= 0; i--)
    if (watched[i].number == number) return watched[i].path;
  return "";
}

static char change_of(uint32_t mask) {
  if (mask & IN_CREATE) return FILE_CHANGE_CREATE;
  if (mask & IN_DELETE) return FILE_CHANGE_REMOVE;
  if (mask & IN_MODIFY) return FILE_CHANGE_WRITE;
  return mask & IN_ATTRIB ? FILE_CHANGE_CHMOD : FILE_CHANGE_RENAME;
}

/* change-kind name NUL */
static void report_change(int inotify, const char *root, const struct inotify_event *event, bool recursive) {
  char name[PATH_MAX];
  const char *directory = watched_path(event->wd);
  if (!event->len) return;
  int length =
      snprintf(name, sizeof name, "%c%s%s%s", change_of(event->mask), directory, *directory ? "/" : "", event->name);
  write_output(name, (size_t)length + 1);
  bool appeared = event->mask & (IN_CREATE | IN_MOVED_TO);
  if (recursive && appeared && (event->mask & IN_ISDIR)) watch_directory(inotify, root, name + 1, true);
}

static int watch_files(char **argv) {
  bool recursive = argv[2][0] == '1';
  int inotify = inotify_init1(IN_CLOEXEC);
  if (inotify < 0) fail(argv[1]);
  watch_directory(inotify, argv[1], "", recursive);
  write_output("!", 2); /* tells the host that the watch is in place */
  for (;;) {
    static char events[65536] __attribute__((aligned(8)));
    ssize_t got = read(inotify, events, sizeof events);
    if (got <= 0) fail(argv[1]);
    for (char *at = events; at < events + got;) {
      struct inotify_event *event = (struct inotify_event *)at;
      report_change(inotify, argv[1], event, recursive);
      at += sizeof *event + event->len;
    }
  }
}

/* Writes everything that the file system of a path has in memory to its disk. */
static int sync_disk(char **argv) {
  int fd = open(argv[1], O_RDONLY | O_CLOEXEC);
  if (fd < 0 || syncfs(fd)) fail(argv[1]);
  return 0;
}

static const struct field OPERATIONS[] = {FILE_OPERATIONS(FIELD_ROW)};

static const struct {
  const char *name;
  int (*run)(char **argv);
} HANDLERS[] = {
    {"read", read_file},        {"write", write_file},     {"stat", stat_file},      {"list", list_directory},
    {"mkdir", make_directory},  {"move", move_file},       {"remove", remove_file},  {"watch", watch_files},
    {"pack", pack_files},       {"changes", pack_changes}, {"unpack", unpack_files}, {"sync", sync_disk},
    {"pack-whole", pack_whole},
};

int run_builtin(char **argv) {
  size_t count = 0;
  while (argv[count]) count++;
  const struct field *operation = find_field(OPERATIONS, LENGTH(OPERATIONS), argv[0]);
  for (size_t i = 0; operation && count == operation->arity + 1 && i < LENGTH(HANDLERS); i++)
    if (!strcmp(argv[0], HANDLERS[i].name)) return HANDLERS[i].run(argv);
  dprintf(2, "EINVAL %s", argv[0]);
  return 1;
}
