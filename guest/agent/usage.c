#include "agent.h"

#include <ctype.h>
#include <dirent.h>
#include <sys/vfs.h>

struct ceilings ceilings = {.tick = 100};

/* Every file that was opened for writing is charged for what it has grown since; each new entry for a block. */
enum { FILES = 16384, ENTRY_COST = 4096 };

static struct written {
  dev_t dev;
  ino_t ino;
  int fd;
  int64_t base; /* bytes on disk before the sandbox wrote */
} files[FILES];

static int file_count, oldest;
static int64_t settled; /* growth of files that are no longer watched */
static int64_t entries; /* that were made and not removed again */
static bool full;       /* since a command was stopped for it, and until there is room again */

static int64_t size_on_disk(const struct stat *stat) { return (int64_t)stat->st_blocks * 512; }

static int64_t growth_of(const struct written *file) {
  struct stat stat;
  if (fstat(file->fd, &stat)) return 0;
  /* Blocks are given at write-back; until then the length tells more. */
  int64_t now = stat.st_size > size_on_disk(&stat) ? stat.st_size : size_on_disk(&stat);
  return stat.st_nlink && now > file->base ? now - file->base : 0;
}

static struct written *slot_for(const struct stat *stat) {
  for (int i = file_count - 1; i >= 0; i--)
    if (files[i].ino == stat->st_ino && files[i].dev == stat->st_dev) return NULL;
  if (file_count < FILES) return &files[file_count++];
  struct written *file = &files[oldest];
  oldest = (oldest + 1) % FILES;
  settled += growth_of(file);
  close(file->fd);
  return file;
}

void usage_note_write(int fd, const struct stat *stat, bool created) {
  if (!ceilings.disk_bytes || !S_ISREG(stat->st_mode)) return;
  struct written *file = slot_for(stat);
  if (!file) return;
  char link[64];
  snprintf(link, sizeof link, "self/fd/%d", fd);
  *file = (struct written){stat->st_dev, stat->st_ino, openat(proc_fd, link, O_PATH | O_CLOEXEC), 0};
  if (!created) file->base = stat->st_size > size_on_disk(stat) ? stat->st_size : size_on_disk(stat);
}

void usage_note_entry(void) { entries++; }

void usage_note_removal(void) {
  if (entries) entries--;
}

static uint64_t disk_used(void) {
  int64_t total = settled + entries * ENTRY_COST;
  for (int i = 0; i < file_count; i++) total += growth_of(&files[i]);
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

static uint64_t tmpfs_used(const char *path) {
  struct statfs fs;
  return statfs(path, &fs) ? 0 : (uint64_t)(fs.f_blocks - fs.f_bfree) * (uint64_t)fs.f_bsize;
}

/* Private resident pages and number of all processes but us. */
struct load {
  uint64_t pages, processes;
};

static struct load processes_load(void) {
  struct load load = {0};
  DIR *processes = opendir("/proc");
  if (!processes) return (struct load){UINT32_MAX, UINT32_MAX};
  for (struct dirent *entry; (entry = readdir(processes));) {
    if (!isdigit((unsigned char)entry->d_name[0]) || !strcmp(entry->d_name, "1")) continue;
    load.processes++;
    char path[300];
    snprintf(path, sizeof path, "/proc/%s/statm", entry->d_name);
    FILE *file = ceilings.memory_bytes ? fopen(path, "re") : NULL;
    unsigned long size, resident, shared;
    if (file && fscanf(file, "%lu %lu %lu", &size, &resident, &shared) == 3 && resident > shared) load.pages += resident - shared;
    if (file) fclose(file);
  }
  closedir(processes);
  return load;
}

static uint64_t memory_used(const struct load *load) {
  return load->pages * (uint64_t)sysconf(_SC_PAGESIZE) + tmpfs_used("/dev/shm") +
         (ceilings.shared_tmp ? 0 : tmpfs_used("/tmp"));
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
  if (!ceilings.memory_bytes && !ceilings.processes) return NULL;
  struct load load = processes_load();
  if (ceilings.processes && load.processes > ceilings.processes + keepers()) return "pids";
  if (ceilings.memory_bytes && memory_used(&load) > ceilings.memory_bytes) return "memory";
  return NULL;
}
