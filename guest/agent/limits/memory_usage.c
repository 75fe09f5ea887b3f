#include "limits/limits.h"
#include "session/process_tree.h"

#include <ctype.h>
#include <dirent.h>
#include <linux/magic.h>
#include <sys/vfs.h>

/*
 * Memory where no cgroup counts it. /proc shows the private memory of each process. Shared memory need not be mapped
 * by any process, so it is counted when it is created.
 */

bool count_shared_memory;

static uint64_t page_size(void) { return (uint64_t)sysconf(_SC_PAGESIZE); }

/* What an empty file of a tmpfs costs, with a long name. The size of a tmpfs does not bound how many it has. */
enum { TMPFS_INODE_SIZE = 1280 };

static uint64_t tmpfs_usage(const char *path) {
  struct statfs fs;
  if (statfs(path, &fs) || fs.f_type != TMPFS_MAGIC) return 0;
  uint64_t inodes = fs.f_files > fs.f_ffree ? (uint64_t)(fs.f_files - fs.f_ffree) : 0;
  return (uint64_t)(fs.f_blocks - fs.f_bfree) * (uint64_t)fs.f_bsize + inodes * TMPFS_INODE_SIZE;
}

/* /dev, and shared memory, which may be a part of it. */
static uint64_t dev_usage(void) {
  struct stat dev, shm;
  bool same = !stat("/dev", &dev) && !stat("/dev/shm", &shm) && dev.st_dev == shm.st_dev;
  return tmpfs_usage("/dev") + (same ? 0 : tmpfs_usage("/dev/shm"));
}

/* The number in a line `Name:   12`; -1 when there is none. */
static int64_t status_field(const char *text, const char *name) {
  const char *line = strstr(text, name);
  return line ? strtoll(line + strlen(name), NULL, 10) : -1;
}

static bool read_status(const char *name, char *text, size_t size) {
  char path[700];
  snprintf(path, sizeof path, "/proc/%s/status", name);
  return read_text_at(AT_FDCWD, path, text, size) > 0;
}

/* PLATFORM: gVisor does not distinguish private from shared pages in `status`. */
static uint64_t private_pages(const char *name) {
  char path[700], text[128];
  unsigned long size, resident, shared;
  snprintf(path, sizeof path, "/proc/%s/statm", name);
  bool known = read_text_at(AT_FDCWD, path, text, sizeof text) > 0 &&
               sscanf(text, "%lu %lu %lu", &size, &resident, &shared) == 3;
  return known && resident > shared ? (resident - shared) * page_size() : 0;
}

/* Private pages, swapped-out private pages and page tables; -1: the status does not show them. */
static int64_t private_memory_in(const char *status) {
  int64_t resident = status_field(status, "\nRssAnon:"), swapped = status_field(status, "\nVmSwap:"),
          tables = status_field(status, "\nVmPTE:");
  return resident < 0 ? -1 : (resident + (swapped > 0 ? swapped : 0) + (tables > 0 ? tables : 0)) * 1024;
}

static bool shows_private_memory(const char *name, void *result) {
  char text[4096];
  int64_t bytes = read_status(name, text, sizeof text) ? private_memory_in(text) : -1;
  *(uint64_t *)result = bytes < 0 ? private_pages(name) : (uint64_t)bytes;
  return bytes >= 0 || *(uint64_t *)result;
}

/* The private memory and the number of threads of all processes except PID 1. A zombie counts as a thread. */
struct process_usage {
  uint64_t bytes, threads;
};

static void add_process(const char *pid, struct process_usage *usage) {
  char text[4096];
  bool known = read_status(pid, text, sizeof text);
  int64_t threads = known ? status_field(text, "\nThreads:") : 1, bytes = known ? private_memory_in(text) : 0;
  uint64_t shown = 0;
  if (bytes < 0) any_thread(pid, shows_private_memory, &shown);
  usage->threads += threads > 1 ? (uint64_t)threads : 1;
  usage->bytes += bytes < 0 ? shown : (uint64_t)bytes;
}

static struct process_usage measure_processes(void) {
  struct process_usage usage = {0};
  DIR *processes = opendir("/proc");
  if (!processes) return (struct process_usage){UINT64_MAX / 2, UINT32_MAX};
  for (struct dirent *entry; (entry = readdir(processes));)
    if (isdigit((unsigned char)entry->d_name[0]) && strcmp(entry->d_name, "1")) add_process(entry->d_name, &usage);
  closedir(processes);
  return usage;
}

/* A column of a table of System V objects, and how many bytes each unit in it is. */
struct column {
  int index;
  unsigned bytes;
};

enum { MESSAGE_SIZE = 64, SEMAPHORE_SIZE = 64, SYSTEM_V_OBJECT_SIZE = 1024 };

/* Sums two columns of a table, and the objects in it. */
static uint64_t sum_table(const char *path, struct column first, struct column second) {
  FILE *table = fopen(path, "re");
  char line[512];
  uint64_t total = 0;
  if (!table) return 0;
  for (bool head = true; fgets(line, sizeof line, table); head = false) {
    int column = 0;
    if (!head) total += SYSTEM_V_OBJECT_SIZE;
    for (char *word = strtok(line, " \n"); word && !head; word = strtok(NULL, " \n"), column++) {
      if (column == first.index) total += strtoull(word, NULL, 10) * first.bytes;
      if (column == second.index) total += strtoull(word, NULL, 10) * second.bytes;
    }
  }
  fclose(table);
  return total;
}

static uint64_t system_v_usage(void) {
  static const struct column NONE = {-1, 0};
  return sum_table("/proc/sysvipc/shm", (struct column){14, 1}, (struct column){15, 1}) +
         sum_table("/proc/sysvipc/msg", (struct column){3, 1}, (struct column){4, MESSAGE_SIZE}) +
         sum_table("/proc/sysvipc/sem", (struct column){3, SEMAPHORE_SIZE}, NONE);
}

/*
 * Anonymous shared memory: its pages stay allocated while any part of it is mapped. Each segment is counted in full
 * from its creation; the kernel only shows how many segments still exist.
 */
enum { MAX_SEGMENTS = 1024, SEGMENT_GRACE_MS = 2000 };

static struct shared_segment {
  size_t length;
  int64_t since;
} segments[MAX_SEGMENTS];
static size_t segment_count;

static uint64_t segment_usage(void) {
  uint64_t total = 0;
  for (size_t i = 0; i < segment_count; i++) total += segments[i].length;
  return total;
}

static void note_inode(uint64_t inode, uint64_t *seen, size_t *count) {
  for (size_t i = 0; i < *count; i++)
    if (seen[i] == inode) return;
  if (*count < MAX_SEGMENTS) seen[(*count)++] = inode;
}

struct seen_segments {
  uint64_t inodes[MAX_SEGMENTS];
  size_t count;
};

/* Matches `…-… rw-s … 00:01 1234   /dev/zero (deleted)`. Every process has some mapping. */
static bool shows_mappings(const char *name, void *result) {
  struct seen_segments *seen = result;
  char path[700], line[512], flag[16];
  unsigned long inode;
  bool any = false;
  snprintf(path, sizeof path, "/proc/%s/maps", name);
  FILE *maps = fopen(path, "re");
  for (; maps && fgets(line, sizeof line, maps); any = true)
    if (sscanf(line, "%*s %*3s%1[s] %*s %*s %lu", flag, &inode) == 2 && strstr(line, "/dev/zero (deleted)"))
      note_inode(inode, seen->inodes, &seen->count);
  bool whole = any && !ferror(maps);
  if (maps) fclose(maps);
  return whole;
}

/* Returns false when a process has mappings that we cannot read. */
static bool find_segments(const char *pid, struct seen_segments *seen) {
  return any_thread(pid, shows_mappings, seen) || live_parent_of(pid) < 0;
}

/* How many segments still exist; MAX_SEGMENTS when that is unknown. */
static size_t count_live_segments(void) {
  static struct seen_segments seen;
  seen.count = 0;
  DIR *processes = opendir("/proc");
  bool told = processes;
  for (struct dirent *entry; told && (entry = readdir(processes));) {
    const char *pid = entry->d_name;
    if (!isdigit((unsigned char)pid[0]) || !strcmp(pid, "1")) continue;
    /* subreapers belong to the agent and have none */
    if (live_parent_of(pid) != 1 || !agent_processes()) told = find_segments(pid, &seen);
  }
  if (processes) closedir(processes);
  return told ? seen.count : MAX_SEGMENTS;
}

static int longest_first(const void *a, const void *b) {
  const struct shared_segment *one = a, *other = b;
  return one->length < other->length ? 1 : one->length > other->length ? -1 : 0;
}

/*
 * SECURITY: the kernel does not tell which segments still exist, so the longest are assumed to. New ones may not be
 * mapped yet.
 */
static void drop_dead_segments(void) {
  size_t living = count_live_segments(), kept = 0;
  int64_t now = monotonic_ms();
  qsort(segments, segment_count, sizeof *segments, longest_first);
  for (size_t i = 0; i < segment_count; i++)
    if (i < living || now - segments[i].since < SEGMENT_GRACE_MS) segments[kept++] = segments[i];
  segment_count = kept;
}

uint64_t shared_memory_usage(void) {
  uint64_t total = dev_usage() + (limits.shared_tmp ? 0 : tmpfs_usage("/tmp"));
  return count_shared_memory ? total + system_v_usage() + segment_usage() + socket_usage() + memfd_usage() : total;
}

static uint64_t memory_used(const struct process_usage *usage) {
  return usage->bytes + shared_memory_usage() + isolated_usage().memory;
}

bool reserve_shared_memory(size_t length) {
  if (length > limits.memory_bytes) return false;
  if (segment_count == MAX_SEGMENTS || segment_usage() + length > limits.memory_bytes) drop_dead_segments();
  if (segment_count == MAX_SEGMENTS || segment_usage() + length > limits.memory_bytes) return false;
  segments[segment_count++] = (struct shared_segment){length, monotonic_ms()};
  return true;
}

void memory_usage_reset(void) {
  segment_count = 0;
  memfd_release_all();
}

const char *exceeded_process_limit(void) {
  if (!limits.memory_bytes && !limits.processes) return NULL;
  if (count_shared_memory) memfd_release_unused();
  struct process_usage usage = measure_processes();
  if (limits.processes && usage.threads > limits.processes + agent_processes()) return LIMIT_NAME_PIDS;
  if (!limits.memory_bytes || memory_used(&usage) <= limits.memory_bytes) return NULL;
  if (count_shared_memory) drop_dead_segments();
  return memory_used(&usage) > limits.memory_bytes ? LIMIT_NAME_MEMORY : NULL;
}
