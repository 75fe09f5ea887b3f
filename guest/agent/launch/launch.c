#include "launch/launch.h"
#include "common/channel.h"
#include "launch/writable_root.h"
#include "supervise/resolve.h"

#include <grp.h>
#include <sys/mman.h>
#include <sys/prctl.h>

/*
 * `launch`: reads the launch vector, opens the mount sources by inode and executes bubblewrap with everything else
 * behind descriptors.
 *
 * The vector is in the environment (RINGFENCE_LAUNCH is the number of items, RINGFENCE_LAUNCH_0 the first one). Unlike
 * an argument list other users cannot read it; unlike a file nothing is left behind; and callers can start the
 * launcher themselves. All other variables are passed to the command.
 */
extern char **environ;

static int handover_fd = -1;
static int contents_fd = -1;
static struct strings launch_vector;
static struct strings bwrap;
static struct strings config;
static char filter_hex[65536];
static const char *bwrap_path;

static void read_launch_vector(void) {
  const char *count_text = getenv(LAUNCH_VARIABLE);
  long count = count_text ? strtol(count_text, NULL, 10) : 0;
  if (count <= 0 || count > 1 << 20) die("no launch vector in the environment");
  char **slots = calloc((size_t)count + 1, sizeof(char *));
  if (!slots) die("out of memory");
  for (char **entry = environ; *entry; entry++) {
    if (strncmp(*entry, LAUNCH_VARIABLE "_", sizeof LAUNCH_VARIABLE)) {
      /* Node sets these for the channel over which it receives descriptors. */
      bool is_node_channel = !strncmp(*entry, "NODE_CHANNEL_", 13);
      if (strncmp(*entry, LAUNCH_VARIABLE "=", sizeof LAUNCH_VARIABLE) && !is_node_channel) {
        strings_add(&config, "env");
        strings_add(&config, *entry);
      }
      continue;
    }
    /* SECURITY: accepts `…_7=` but not `…_07=`, so that a command's variable cannot replace an item of ours. */
    char *end, canonical[32];
    long index = strtol(*entry + sizeof LAUNCH_VARIABLE, &end, 10);
    snprintf(canonical, sizeof canonical, "%ld=", index);
    if (index < 0 || index >= count || strncmp(*entry + sizeof LAUNCH_VARIABLE, canonical, strlen(canonical)) ||
        slots[index])
      die("launch vector: bad item %.40s", *entry);
    slots[index] = end + 1;
  }
  for (long i = 0; i < count; i++) {
    if (!slots[i]) die("launch vector: item %ld is missing", i);
    strings_add(&launch_vector, slots[i]);
  }
}

static char *number_text(int value) {
  char *text = malloc(12);
  if (!text) die("out of memory");
  snprintf(text, 12, "%d", value);
  return text;
}

int memory_file(const void *data, size_t length) {
  int fd = memfd_create("ringfence", 0);
  if (fd < 0) die("memfd_create: %s", strerror(errno));
  for (size_t done = 0; done < length;) {
    ssize_t written = write(fd, (const char *)data + done, length - done);
    if (written <= 0) die("memfd: %s", strerror(errno));
    done += (size_t)written;
  }
  lseek(fd, 0, SEEK_SET);
  return fd;
}

/*
 * SECURITY: mounts exactly the inode that the policy checked. A path that was replaced since, or that contains a
 * symbolic link, is refused.
 */
int open_source(const char *path, const char *dev, const char *ino) {
  int fd = open_no_symlinks(AT_FDCWD, path, O_PATH);
  struct stat stat;
  if (fd < 0 || fstat(fd, &stat)) die("cannot open %s: %s", path, strerror(errno));
  if (stat.st_dev != strtoull(dev, NULL, 10) || stat.st_ino != strtoull(ino, NULL, 10))
    die("%s was replaced after the policy checked it", path);
  fcntl(fd, F_SETFD, 0);
  return fd;
}

static void bind_source(const char *mode, char **arguments) {
  int fd = open_source(arguments[0], arguments[1], arguments[2]);
  strings_add(&bwrap, !strcmp(mode, "rw") ? "--bind-fd" : "--ro-bind-fd");
  strings_add(&bwrap, number_text(fd));
  strings_add(&bwrap, arguments[3]);
}

static void add_file(const char *target, const char *content, size_t length) {
  strings_add(&bwrap, "--file");
  strings_add(&bwrap, number_text(memory_file(content, length)));
  strings_add(&bwrap, target);
}

/* A read-only file over one that exists. */
static void cover_file(const char *target, const char *content) {
  strings_add(&bwrap, "--ro-bind-data");
  strings_add(&bwrap, number_text(memory_file(content, strlen(content))));
  strings_add(&bwrap, target);
}

/*
 * PLATFORM: one variable holds at most 128 KiB (MAX_ARG_STRLEN), and a bundle of certificates is larger. The contents
 * of such files come one after another on a descriptor; the vector tells the length of each.
 */
static void receive_file(const char *target, const char *size) {
  size_t length = strtoul(size, NULL, 10), done = 0;
  char *content = contents_fd < 0 || length > MAX_FILE_CONTENTS ? NULL : malloc(length + 1);
  if (!content) die("launch vector: no contents for %s", target);
  while (done < length) {
    ssize_t got = read(contents_fd, content + done, length - done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) die("cannot read the contents of %s: %s", target, got ? strerror(errno) : "end of file");
    done += (size_t)got;
  }
  add_file(target, content, length);
  free(content);
}

static uid_t user;
static gid_t group;

static void set_user(const char *uid, const char *gid) {
  user = (uid_t)strtoul(uid, NULL, 10);
  group = (gid_t)strtoul(gid, NULL, 10);
}

/* The last step before exec: cgroups are joined and sources opened with the privileges of the caller. */
static void change_user(void) {
  if (!user) return;
  if (setgroups(0, NULL) || setresgid(group, group, group) || setresuid(user, user, user))
    die("cannot switch to user %u: %s", user, strerror(errno));
}

void die_with_parent(pid_t parent) {
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != parent) die("the parent process is gone");
}

static const struct field OPERATIONS[] = {LAUNCH_OPERATIONS(FIELD_ROW)};

static void apply(const char *name, char **arguments) {
  if (!strcmp(name, "bwrap")) bwrap_path = arguments[0];
  else if (!strcmp(name, "control") || !strcmp(name, "handover") || !strcmp(name, "contents")) return;
  else if (!strcmp(name, "cgroup")) join_cgroup(arguments[0]);
  else if (!strcmp(name, "bind")) bind_source(arguments[0], arguments + 1);
  else if (!strcmp(name, "arg")) strings_add(&bwrap, arguments[0]);
  else if (!strcmp(name, "file")) add_file(arguments[0], arguments[1], strlen(arguments[1]));
  else if (!strcmp(name, "cover")) cover_file(arguments[0], arguments[1]);
  else if (!strcmp(name, "file-from-contents")) receive_file(arguments[0], arguments[1]);
  else if (!strcmp(name, "user")) set_user(arguments[0], arguments[1]);
  else if (!strcmp(name, "ids")) root_set_ids(arguments);
  else if (!strcmp(name, "lower")) root_add_lower(arguments);
  else if (!strcmp(name, "layer")) root_add_layer(arguments);
  else if (!strcmp(name, "disk")) root_set_disk(arguments);
  else if (!strcmp(name, "mount")) root_add_mount(arguments);
  else if (!strcmp(name, "own")) root_add_own(arguments);
  else if (!strcmp(name, "temporary")) root_add_temporary(arguments);
  else if (!strcmp(name, "filter")) snprintf(filter_hex, sizeof filter_hex, "%s", arguments[0]);
  else strings_add(&config, arguments[0]);
}

static void each_operation(void (*action)(const char *name, char **arguments)) {
  for (size_t at = 0; at < launch_vector.count;) {
    const char *name = launch_vector.items[at++];
    const struct field *operation = find_field(OPERATIONS, LENGTH(OPERATIONS), name);
    if (!operation || at + operation->arity > launch_vector.count) die("launch vector: bad operation %s", name);
    action(name, launch_vector.items + at);
    at += operation->arity;
  }
}

static void find_channels(const char *name, char **arguments) {
  if (!strcmp(name, "control")) control_fd = atoi(arguments[0]);
  if (!strcmp(name, "handover")) handover_fd = atoi(arguments[0]);
  if (!strcmp(name, "contents")) contents_fd = atoi(arguments[0]);
}

static int filter_file(void) {
  size_t length = strlen(filter_hex) / 2;
  unsigned char *bytes = malloc(length + 1);
  if (!bytes || length == 0 || length % 8) die("launch vector: bad filter");
  for (size_t i = 0; i < length; i++)
    if (sscanf(filter_hex + 2 * i, "%2hhx", &bytes[i]) != 1) die("launch vector: bad filter");
  return memory_file(bytes, length);
}

static int joined_file(struct strings *list) {
  size_t length = 0;
  for (size_t i = 0; i < list->count; i++) length += strlen(list->items[i]) + 1;
  char *bytes = malloc(length + 1), *at = bytes;
  if (!bytes) die("out of memory");
  for (size_t i = 0; i < list->count; i++) at = stpcpy(at, list->items[i]) + 1;
  return memory_file(bytes, length);
}

/* SECURITY: bubblewrap would pass all open descriptors on to the sandbox. */
static void close_inherited(void) {
  int last = handover_fd > control_fd ? handover_fd : control_fd;
  if (contents_fd > last) last = contents_fd;
  if (syscall(SYS_close_range, last < 3 ? 3 : last + 1, ~0U, 0)) die("close_range: %s", strerror(errno));
  for (int fd = 3; fd < last; fd++)
    if (fd != control_fd && fd != handover_fd && fd != contents_fd) close(fd);
}

/* The start time of a process in clock ticks since boot, which makes a pid unique; 0 when it is gone. */
static unsigned long long start_time_of(pid_t pid) {
  char path[64], stat[1024];
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  read_text_at(AT_FDCWD, path, stat, sizeof stat);
  char *at = strrchr(stat, ')');
  for (int field = 2; at && field < 22; field++) at = strchr(at + 1, ' ');
  return at ? strtoull(at + 1, NULL, 10) : 0;
}

/*
 * If its parent exits between fork and prctl(PR_SET_PDEATHSIG), bubblewrap waits forever. src/host/process/orphans.ts finds
 * such a process by this name and kills it when its owner is dead.
 */
char *owner_process_name(pid_t owner) {
  static char name[128];
  char space[64] = "";
  ssize_t length = readlink("/proc/self/ns/pid", space, sizeof space - 1);
  char *number_in = length > 0 ? strpbrk(space, "0123456789") : NULL;
  snprintf(name, sizeof name, OWNER_PREFIX "-%llu-%d-%llu", number_in ? strtoull(number_in, NULL, 10) : 0ULL, owner,
           start_time_of(owner));
  return name;
}

/* Node sets close-on-exec in the child; these descriptors must reach init. */
static void keep_open_on_exec(int fd) {
  if (fd >= 0) fcntl(fd, F_SETFD, 0);
}

static void prepare_arguments(struct strings *argv, char *owner) {
  static char exe[64];
  int self = open("/proc/self/exe", O_PATH);
  if (self < 0) die("/proc/self/exe: %s", strerror(errno));
  snprintf(exe, sizeof exe, "/proc/self/fd/%d", self);
  strings_add(argv, owner);
  strings_add(argv, "--args");
  strings_add(argv, number_text(joined_file(&bwrap)));
  strings_add(argv, "--");
  strings_add(argv, exe);
  strings_add(argv, "init");
  strings_add(argv, number_text(joined_file(&config)));
  strings_add(argv, number_text(filter_file()));
  strings_add(argv, number_text(control_fd));
}

/* The agent keeps the range of ids as long as it lives. */
static void assemble_root(void) {
  root_assemble();
  strings_add(&config, "range-lock");
  strings_add(&config, number_text(root_lock()));
}

void read_launch_operations(void) {
  read_launch_vector();
  each_operation(find_channels);
  close_inherited();
  keep_open_on_exec(control_fd);
  keep_open_on_exec(handover_fd);
  each_operation(apply);
  if (contents_fd >= 0) close(contents_fd);
}

_Noreturn void launch(pid_t parent, pid_t host) {
  struct strings argv = {0};
  char *no_environment[] = {NULL};
  die_with_parent(parent);
  char *owner = owner_process_name(host);
  read_launch_operations();
  if (!bwrap_path) die("launch vector: no bwrap");
  if (root_is_wanted()) assemble_root();
  prepare_arguments(&argv, owner);
  change_user();
  die_with_parent(parent); /* setresuid clears the parent-death signal */
  /* SECURITY: bubblewrap runs on the host; with an empty environment a command's LD_PRELOAD cannot affect it. */
  execve(bwrap_path, strings_vector(&argv), no_environment);
  die("cannot start %s: %s", bwrap_path, strerror(errno));
}

_Noreturn void launch_main(void) {
  pid_t host = getppid();
  launch(host, host);
}
