#include "limits/limits.h"
#include "supervise/resolve.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/vfs.h>

/*
 * Each file that was opened for writing is charged for its growth since then, and each new directory entry for a
 * block.
 */
enum { MAX_TRACKED_FILES = 16384, ENTRY_COST = 4096 };

static struct tracked_file {
  dev_t dev;
  ino_t ino;
  int fd;
  int64_t base; /* bytes on disk before the sandbox wrote */
} tracked_files[MAX_TRACKED_FILES];

static int file_count;
static dev_t ignored_devices[2];
/* Growth of files that no process can write any more; an open for writing tracks the file again. */
static int64_t untracked_growth;
static int64_t entry_count; /* created and not deleted */
static bool disk_full;      /* from when a command was stopped for it until there is space again */
static bool table_full;     /* a file of an isolated command could not be tracked */
/*
 * Isolated commands: PID 1 tracks the files of all of them, because a file outlives the command that wrote it. Their namespace
 * inits pass the files on, and see in shared memory whether the disk is full.
 */
static bool *shared_full;
static bool (*pass_file)(int fd, int64_t base);

static int64_t size_on_disk(const struct stat *stat) { return (int64_t)stat->st_blocks * 512; }

static int64_t growth_since(int64_t base, const struct stat *stat) {
  /* Blocks are allocated at write-back; until then the length is the better measure. */
  int64_t now = stat->st_size > size_on_disk(stat) ? stat->st_size : size_on_disk(stat);
  return now > base ? now - base : 0;
}

static int64_t growth_of(const struct tracked_file *file) {
  struct stat stat;
  return fstat(file->fd, &stat) ? 0 : growth_since(file->base, &stat);
}

static void untrack(struct tracked_file *file) {
  close(file->fd);
  *file = tracked_files[--file_count];
}

static int reopen(const struct tracked_file *file, int flags) {
  char link[64];
  snprintf(link, sizeof link, "self/fd/%d", file->fd);
  return openat(proc_fd, link, flags | O_NONBLOCK | O_CLOEXEC);
}

/*
 * Whether no other process has the file open: for writing (F_RDLCK), or at all (F_WRLCK). The kernel grants a lease
 * only then, and it also counts descriptors in socket queues, mappings and processes that we cannot inspect.
 */
static bool has_no_other_opener(const struct tracked_file *file, int lease) {
  int fd = reopen(file, O_RDONLY);
  if (fd < 0) return false;
  bool granted = !fcntl(fd, F_SETLEASE, lease);
  if (granted) fcntl(fd, F_SETLEASE, F_UNLCK);
  close(fd);
  return granted;
}

/* SECURITY: drops only files that no process can write. An open for writing tracks the file again. */
static void untrack_closed(void) {
  for (int i = file_count - 1; i >= 0; i--) {
    if (!has_no_other_opener(&tracked_files[i], F_RDLCK)) continue;
    untracked_growth += growth_of(&tracked_files[i]);
    untrack(&tracked_files[i]);
  }
}

static bool is_tracked(const struct stat *stat) {
  for (int i = file_count - 1; i >= 0; i--)
    if (tracked_files[i].ino == stat->st_ino && tracked_files[i].dev == stat->st_dev) return true;
  return false;
}

static bool is_ignored(dev_t device) {
  return device && (device == ignored_devices[0] || device == ignored_devices[1]);
}

enum { OTHER_FDS = 512 };

/* How many files can be tracked while there are still descriptors for everything else. */
static int capacity(void) {
  struct rlimit most;
  if (getrlimit(RLIMIT_NOFILE, &most) || most.rlim_cur > MAX_TRACKED_FILES + OTHER_FDS) return MAX_TRACKED_FILES;
  return most.rlim_cur > 2 * OTHER_FDS ? (int)most.rlim_cur - OTHER_FDS : (int)most.rlim_cur / 2;
}

static int open_tracking_fd(int fd) {
  char link[64];
  snprintf(link, sizeof link, "self/fd/%d", fd);
  return file_count < capacity() ? openat(proc_fd, link, O_PATH | O_CLOEXEC) : -1;
}

bool disk_track_file(int fd, const struct stat *stat, bool created) {
  if (!limits.disk_bytes || !S_ISREG(stat->st_mode) || is_ignored(stat->st_dev) || is_tracked(stat)) return true;
  int own = open_tracking_fd(fd);
  if (own < 0) untrack_closed(), own = open_tracking_fd(fd);
  if (own < 0) return false;
  int64_t before = stat->st_size > size_on_disk(stat) ? stat->st_size : size_on_disk(stat), base = created ? 0 : before;
  if (!pass_file)
    return tracked_files[file_count++] = (struct tracked_file){stat->st_dev, stat->st_ino, own, base}, true;
  bool passed = pass_file(own, base);
  return close(own), passed;
}

void disk_track_passed(int fd, int64_t base) {
  struct stat stat;
  bool known = fd >= 0 && (fstat(fd, &stat) || is_tracked(&stat));
  if (!known && file_count >= capacity()) untrack_closed();
  if (!known && fd >= 0 && file_count < capacity()) {
    tracked_files[file_count++] = (struct tracked_file){stat.st_dev, stat.st_ino, fd, base};
    return;
  }
  if (!known) table_full = true;
  if (fd >= 0) close(fd);
}

void disk_share(void) {
  shared_full = mmap(NULL, sizeof *shared_full, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared_full == MAP_FAILED) die("shared memory: %s", strerror(errno));
}

void disk_pass_files(bool (*pass)(int fd, int64_t base)) {
  pass_file = pass;
  if (mprotect(shared_full, sizeof *shared_full, PROT_READ)) die("shared memory: %s", strerror(errno));
}

void disk_ignore_device(dev_t device) { ignored_devices[ignored_devices[0] ? 1 : 0] = device; }

void disk_add_entry(void) { entry_count++; }

void disk_add_bytes(size_t length) { untracked_growth += (int64_t)length; }

void disk_remove_entry(void) {
  if (entry_count) entry_count--;
}

/* Frees the blocks, even when a process keeps an O_PATH descriptor, which can neither read nor write. */
static bool truncate_to_zero(const struct tracked_file *file) {
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

/*
 * A deleted file counts while a process has it open. After that only our descriptor is left, and its space is freed.
 */
static int64_t files_used(void) {
  int64_t total = 0;
  struct stat stat;
  for (int i = file_count - 1; i >= 0; i--) {
    bool gone = fstat(tracked_files[i].fd, &stat) || !stat.st_nlink;
    if (gone && has_no_other_opener(&tracked_files[i], F_WRLCK) && truncate_to_zero(&tracked_files[i]))
      untrack(&tracked_files[i]);
    else total += growth_since(tracked_files[i].base, &stat);
  }
  return total;
}

void disk_release_deleted(void) { files_used(); }

uint64_t disk_usage(void) {
  int64_t total = untracked_growth + entry_count * ENTRY_COST + files_used();
  return total > 0 ? (uint64_t)total : 0;
}

static uint64_t disk_used(void) { return disk_usage() + isolated_usage().disk; }

static bool set_full(bool full) {
  if (shared_full) *shared_full = full;
  return disk_full = full;
}

bool disk_is_full(void) {
  if (pass_file) return *(volatile bool *)shared_full;
  return set_full(disk_full && disk_used() > limits.disk_bytes);
}

/* In blocks. What is left below the first of them is not enough for anybody. */
enum { FULL_BLOCKS = 16, SPACE_AGAIN_BLOCKS = 256 };

bool own_disk_became_full(void) {
  static bool full;
  struct statfs disk;
  if (statfs("/", &disk)) return false;
  bool became = !full && disk.f_bavail < FULL_BLOCKS;
  full = disk.f_bavail < (full ? SPACE_AGAIN_BLOCKS : FULL_BLOCKS);
  return became;
}

/* While the disk is full all writes are refused, so no further command is stopped for what earlier ones wrote. */
bool disk_limit_crossed(void) {
  bool untracked = table_full;
  table_full = false;
  if (untracked) return true;
  if (!limits.disk_bytes || disk_is_full()) return false;
  return set_full(disk_used() > limits.disk_bytes);
}
