#include "init/confine.h"
#include "common/channel.h"
#include "session/session.h"
#include "session/users/users.h"

#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>

/*
 * The seccomp filter refuses them as well; this limit does not depend on the filter. One namespace is needed when the
 * sandbox's user is not the one who made the mounts.
 */
void limit_user_namespaces(bool allow_one) {
  static const char PATH[] = "/proc/sys/user/max_user_namespaces";
  if (access(PATH, F_OK) && errno == ENOENT) return; /* PLATFORM: gVisor */
  write_text(PATH, allow_one ? "1" : "0");
}

void map_user(const char *uid, const char *gid, unsigned outer) {
  char map[64];
  if (unshare(CLONE_NEWUSER)) die("user namespace: %s", strerror(errno));
  write_text("/proc/self/setgroups", "deny");
  snprintf(map, sizeof map, "%s %u 1", gid, outer);
  write_text("/proc/self/gid_map", map);
  snprintf(map, sizeof map, "%s %u 1", uid, outer);
  write_text("/proc/self/uid_map", map);
}

static void reduce_privileges(uint64_t bounding, uint64_t permitted, bool has_ambient) {
  for (int cap = 0; cap <= 63; cap++)
    if (!(bounding >> cap & 1)) prctl(PR_CAPBSET_DROP, cap, 0, 0, 0);
  if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) && has_ambient)
    die("ambient capabilities: %s", strerror(errno));
  if (!set_capabilities(permitted, permitted)) die("capset: %s", strerror(errno));
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) die("no_new_privs: %s", strerror(errno));
  /* SECURITY: commands run with our uid; only this keeps them out of our memory and descriptors. */
  if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)) die("dumpable: %s", strerror(errno));
}

void drop_privileges(bool has_ambient) { reduce_privileges(0, 0, has_ambient); }

/*
 * SECURITY: the bounding set is what a program has that root starts. CAP_SYS_PTRACE is ours alone: with it PID 1 reads the
 * arguments of calls that other users make, and no process without it may trace PID 1, whatever its user is.
 */
void keep_root_capabilities(void) {
  reduce_privileges(ROOT_CAPABILITIES, ROOT_CAPABILITIES | AGENT_CAPABILITIES, true);
}

/* Not in the headers of the oldest system that we build on. */
#define ACCESS_REFER (1ULL << 13)
#define ACCESS_TRUNCATE (1ULL << 14)
#define ACCESS_IOCTL_DEV (1ULL << 15)
#define SCOPE_ABSTRACT_SOCKETS 1ULL
#define SCOPE_SIGNALS 2ULL

static const uint64_t READ_ONLY =
    LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR;
static const uint64_t FILE_RIGHTS = LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_READ_FILE |
                                    LANDLOCK_ACCESS_FS_WRITE_FILE | ACCESS_TRUNCATE | ACCESS_IOCTL_DEV;

struct ruleset {
  uint64_t files, net, scoped;
};

static void allow_beneath(int ruleset, const char *path, uint64_t access) {
  int fd = open(path, O_PATH | O_CLOEXEC);
  struct stat stat;
  if (fd < 0 || fstat(fd, &stat)) die("landlock: %s: %s", path, strerror(errno));
  if (!S_ISDIR(stat.st_mode)) access &= FILE_RIGHTS;
  struct landlock_path_beneath_attr rule = {.allowed_access = access, .parent_fd = fd};
  if (syscall(SYS_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0))
    die("landlock: %s: %s", path, strerror(errno));
  close(fd);
}

/*
 * Nobody may create device nodes. The rest of a writable root is the sandbox's own; what is not, such as /proc/sys, is
 * mounted read-only.
 */
static uint64_t rights_of_root(uint64_t all, bool writable_root) {
  uint64_t devices = LANDLOCK_ACCESS_FS_MAKE_CHAR | LANDLOCK_ACCESS_FS_MAKE_BLOCK | ACCESS_IOCTL_DEV;
  return writable_root ? all & ~devices : READ_ONLY;
}

int landlock_restrict(struct strings *writable, bool files, bool writable_root, enum landlock_scope scope) {
  long abi = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);
  if (abi < 1) return 0;
  uint64_t all = (1ULL << 13) - 1;
  if (abi >= 2) all |= ACCESS_REFER;
  if (abi >= 3) all |= ACCESS_TRUNCATE;
  if (abi >= 5) all |= ACCESS_IOCTL_DEV;
  struct ruleset handled = {.files = files ? all : 0,
                            .scoped =
                                abi >= 6 && scope == LANDLOCK_SCOPED ? SCOPE_ABSTRACT_SOCKETS | SCOPE_SIGNALS : 0};
  if (!handled.files && !handled.scoped) return scope == LANDLOCK_SCOPED ? 0 : (int)abi;
  int ruleset = (int)syscall(SYS_landlock_create_ruleset, &handled, abi >= 6 ? sizeof handled : abi >= 4 ? 16 : 8, 0);
  if (ruleset < 0) die("landlock: %s", strerror(errno));
  if (files) {
    allow_beneath(ruleset, "/", rights_of_root(all, writable_root));
    for (size_t i = 0; i < writable->count; i++) allow_beneath(ruleset, writable->items[i], all);
  }
  if (syscall(SYS_landlock_restrict_self, ruleset, 0)) die("landlock: %s", strerror(errno));
  close(ruleset);
  return (int)abi;
}

void landlock_set_scope(void) {
  struct strings none = {0};
  landlock_restrict(&none, false, false, LANDLOCK_SCOPED);
}

void seccomp_load(int fd) {
  static struct sock_filter code[BPF_MAXINSNS];
  ssize_t length = pread(fd, code, sizeof code, 0); /* the isolator has the same descriptor */
  if (length <= 0 || length % (ssize_t)sizeof *code) die("seccomp filter: bad length");
  struct sock_fprog program = {.len = (unsigned short)(length / (ssize_t)sizeof *code), .filter = code};
  if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program)) die("seccomp: %s", strerror(errno));
  close(fd);
}

/* `0 1879113728 65536`: the second number. */
static unsigned long first_host_id(const char *map) {
  unsigned long inside = 0, outside = 0;
  return sscanf(map, "%lu %lu", &inside, &outside) == 2 ? outside : 0;
}

/* Reports what the kernel says, not what was requested, so that the host can verify the layers. */
void report_ready(int landlock, bool supervised) {
  char status[4096], text[4096] = "";
  if (read_text_at(AT_FDCWD, "/proc/self/status", status, sizeof status) <= 0)
    die("/proc/self/status: %s", strerror(errno));
  size_t used =
      (size_t)snprintf(text, sizeof text, READY_VERSION ":\t%d\n" READY_LANDLOCK ":\t%d\n" READY_GUARD ":\t%d\n",
                       PROTOCOL_VERSION, landlock, supervised);
  static const char *const FIELDS[] = {"CapEff", "CapBnd", "NoNewPrivs", "Seccomp", "Seccomp_filters"};
  for (char *line = strtok(status, "\n"); line; line = strtok(NULL, "\n"))
    for (size_t i = 0; i < LENGTH(FIELDS); i++) {
      size_t name = strlen(FIELDS[i]);
      if (!strncmp(line, FIELDS[i], name) && line[name] == ':')
        used += (size_t)snprintf(text + used, sizeof text - used, "%s\n", line);
    }
  static const char *const SPACES[] = {"user", "pid", "mnt", "ipc", "uts", "net", "cgroup"};
  for (size_t i = 0; i < LENGTH(SPACES); i++) {
    char path[64], id[64];
    snprintf(path, sizeof path, "/proc/self/ns/%s", SPACES[i]);
    ssize_t size = readlink(path, id, sizeof id - 1);
    if (size > 0)
      id[size] = 0, used += (size_t)snprintf(text + used, sizeof text - used, "ns/%s:\t%s\n", SPACES[i], id);
  }
  char map[64];
  if (has_root_user && read_text_at(AT_FDCWD, "/proc/self/uid_map", map, sizeof map) > 0)
    used += (size_t)snprintf(text + used, sizeof text - used, READY_IDS ":\t%lu\n", first_host_id(map));
  if (machine_token)
    used += (size_t)snprintf(text + used, sizeof text - used, READY_TOKEN ":\t%s\n" READY_FILLED ":\t%lld\n",
                             machine_token, files_copied_at);
  send_frame(FRAME_READY, 0, text, used);
}
