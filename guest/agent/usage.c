#include "agent.h"

struct ceilings ceilings = {.tick = 100};

/* Every file that was opened for writing is charged for what it has grown since; each new entry for a block. */
enum { FILES = 16384, ENTRY_COST = 4096 };

static struct written {
  dev_t dev;
  ino_t ino;
  int fd;
  int64_t base; /* bytes on disk before the sandbox wrote */
} files[FILES];

static int file_count;
static int64_t settled; /* growth of files that nobody can write any more, unless we open them again */
static int64_t entries; /* that were made and not removed again */
static bool full;       /* since a command was stopped for it, and until there is room again */

static int64_t size_on_disk(const struct stat *stat) { return (int64_t)stat->st_blocks * 512; }

static int64_t growth_since(int64_t base, const struct stat *stat) {
  /* Blocks are given at write-back; until then the length tells more. */
  int64_t now = stat->st_size > size_on_disk(stat) ? stat->st_size : size_on_disk(stat);
  return now > base ? now - base : 0;
}

static int64_t growth_of(const struct written *file) {
  struct stat stat;
  return fstat(file->fd, &stat) ? 0 : growth_since(file->base, &stat);
}

static void forget(struct written *file) {
  close(file->fd);
  *file = files[--file_count];
}

static int reopen(const struct written *file, int flags) {
  char link[64];
  snprintf(link, sizeof link, "self/fd/%d", file->fd);
  return openat(proc_fd, link, flags | O_NONBLOCK | O_CLOEXEC);
}

/*
 * Whether nobody but us has the file open: for writing (F_RDLCK), or at all (F_WRLCK). The kernel grants a lease only
 * then, and it counts every holder: descriptors that wait in a socket, mappings, processes that do not let us look.
 */
static bool is_left_alone(const struct written *file, int lease) {
  int fd = reopen(file, O_RDONLY);
  if (fd < 0) return false;
  bool granted = !fcntl(fd, F_SETLEASE, lease);
  if (granted) fcntl(fd, F_SETLEASE, F_UNLCK);
  close(fd);
  return granted;
}

/* SECURITY: only a file that nobody can write may leave the table; when it is opened for writing again, it comes back. */
static void settle(void) {
  for (int i = file_count - 1; i >= 0; i--) {
    if (!is_left_alone(&files[i], F_RDLCK)) continue;
    settled += growth_of(&files[i]);
    forget(&files[i]);
  }
}

static bool is_watched(const struct stat *stat) {
  for (int i = file_count - 1; i >= 0; i--)
    if (files[i].ino == stat->st_ino && files[i].dev == stat->st_dev) return true;
  return false;
}

static int watch_fd(int fd) {
  char link[64];
  snprintf(link, sizeof link, "self/fd/%d", fd);
  return file_count < FILES ? openat(proc_fd, link, O_PATH | O_CLOEXEC) : -1;
}

bool usage_note_write(int fd, const struct stat *stat, bool created) {
  if (!ceilings.disk_bytes || !S_ISREG(stat->st_mode) || is_watched(stat)) return true;
  int own = watch_fd(fd);
  if (own < 0) settle(), own = watch_fd(fd);
  if (own < 0) return false;
  int64_t before = stat->st_size > size_on_disk(stat) ? stat->st_size : size_on_disk(stat);
  files[file_count++] = (struct written){stat->st_dev, stat->st_ino, own, created ? 0 : before};
  return true;
}

void usage_note_entry(void) { entries++; }

void usage_note_bytes(size_t length) { settled += (int64_t)length; }

void usage_note_removal(void) {
  if (entries) entries--;
}

/* Gives its blocks back, also when somebody keeps a descriptor that can neither read nor write (O_PATH). */
static bool empties(const struct written *file) {
  char link[64];
  int fd = reopen(file, O_WRONLY);
  if (fd < 0) {
    snprintf(link, sizeof link, "/proc/self/fd/%d", file->fd);
    if (!chmod(link, 0600)) fd = reopen(file, O_WRONLY);
  }
  bool emptied = fd >= 0 && !ftruncate(fd, 0);
  if (fd >= 0) close(fd);
  return emptied;
}

/* A file without a name counts while somebody has it. After that only we do, and what it took is given back. */
static int64_t files_used(void) {
  int64_t total = 0;
  struct stat stat;
  for (int i = file_count - 1; i >= 0; i--) {
    bool gone = fstat(files[i].fd, &stat) || !stat.st_nlink;
    if (gone && is_left_alone(&files[i], F_WRLCK) && empties(&files[i])) forget(&files[i]);
    else total += growth_since(files[i].base, &stat);
  }
  return total;
}

void usage_release(void) { files_used(); }

static uint64_t disk_used(void) {
  int64_t total = settled + entries * ENTRY_COST + files_used();
  return total > 0 ? (uint64_t)total : 0;
}

bool usage_is_full(void) {
  full = full && disk_used() > ceilings.disk_bytes;
  return full;
}

/* Once it is full nobody can write more, so nobody is stopped for what others left. */
static bool fills_up(void) {
  if (!ceilings.disk_bytes || usage_is_full()) return false;
  full = disk_used() > ceilings.disk_bytes;
  return full;
}

int work_group = -1, memory_events = -1, pids_events = -1;

/* `name 12` on a line of its own. */
static uint64_t event_count(int fd, const char *name) {
  char text[512], *line;
  ssize_t length = fd < 0 ? -1 : pread(fd, text, sizeof text - 1, 0);
  if (length <= 0) return 0;
  text[length] = 0;
  size_t width = strlen(name);
  for (line = text; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
    if (!strncmp(line, name, width) && line[width] == ' ') return strtoull(line + width, NULL, 10);
  return 0;
}

uint64_t usage_killed(void) {
  static uint64_t seen;
  uint64_t now = event_count(memory_events, "oom_kill"), more = now - seen;
  seen = now;
  return more;
}

uint64_t usage_refused(void) {
  static uint64_t seen;
  uint64_t now = event_count(pids_events, "max"), more = now - seen;
  seen = now;
  return more;
}

const char *usage_exceeded(void) {
  if (fills_up()) return "disk";
  return load_exceeded();
}
