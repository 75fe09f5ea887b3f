#include "common/common.h"
#include "init/config.h"
#include "init/confine.h"
#include "isolate/isolate.h"
#include "session/users/users.h"
#include "supervise/resolve.h"
#include "supervise/unix_sockets.h"

#include <dirent.h>
#include <linux/magic.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/vfs.h>

/*
 * The mounts of the sandbox stay as they are; what commands could meet in is replaced: /tmp, /dev, /dev/shm, /dev/pts,
 * /run and /proc. Mounts below these directories are moved to the new ones.
 */

#define STAGE_DEV "/tmp/.dev"
#define STAGE_FILE "/tmp/.file"

enum { MAX_COVER = 1 << 16, MAX_INNER = 256, MAX_MOUNTINFO = 1 << 20 };

struct inner_mount {
  char path[PATH_MAX];
  int source;
};

static char mountinfo[MAX_MOUNTINFO];

static void read_mountinfo(void) {
  int fd = open("/proc/self/mountinfo", O_RDONLY | O_CLOEXEC);
  size_t length = 0;
  ssize_t got;
  while (fd >= 0 && length < sizeof mountinfo - 1 &&
         (got = read(fd, mountinfo + length, sizeof mountinfo - 1 - length)) > 0)
    length += (size_t)got;
  if (fd < 0 || length == sizeof mountinfo - 1) die("isolation: too many mounts");
  close(fd);
  mountinfo[length] = 0;
}

/* The kernel writes blanks and backslashes in a path as three octal digits. */
static void decode_path(char *path) {
  char *to = path;
  for (const char *from = path; *from; from++) {
    if (*from == '\\' && from[1] >= '0' && from[1] <= '3' && from[2] && from[3]) {
      *to++ = (char)((from[1] - '0') * 64 + (from[2] - '0') * 8 + (from[3] - '0'));
      from += 3;
    } else *to++ = *from;
  }
  *to = 0;
}

static bool is_within(const char *path, const char *root) {
  size_t length = strlen(root);
  return !strncmp(path, root, length) && path[length] == '/';
}

static bool is_hidden(const char *path) {
  for (size_t i = 0; i < options.hidden.count; i++)
    if (!strcmp(path, options.hidden.items[i])) return true;
  return false;
}

static bool is_covered(const struct inner_mount *mounts, size_t count, const char *path) {
  for (size_t i = 0; i < count; i++)
    if (!strcmp(mounts[i].path, path) || is_within(path, mounts[i].path)) return true;
  return false;
}

/* Copies the mounts below `root`, each with everything below it. Returns how many there are. */
static size_t clone_inner(const char *root, struct inner_mount *mounts) {
  size_t count = 0;
  bool is_proc = !strcmp(root, "/proc");
  read_mountinfo();
  for (char *rest = mountinfo, *line; (line = strsep(&rest, "\n"));) {
    char path[PATH_MAX], type[64];
    const char *kind = strstr(line, " - ");
    if (sscanf(line, "%*s %*s %*s %*s %4095s", path) != 1 || !kind || sscanf(kind, " - %63s", type) != 1) continue;
    decode_path(path);
    if (!is_within(path, root) || is_covered(mounts, count, path)) continue;
    /* Parts of the old /proc show the processes of PID 1's namespace; those of the configuration are made again. */
    if (is_proc && (!strcmp(type, "proc") || is_hidden(path))) continue;
    if (count == MAX_INNER) die("isolation: too many mounts below %s", root);
    int source = open(path, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    /* A later mount covers it, so commands of the sandbox do not see it either. */
    if (source < 0 && (errno == ENOENT || errno == ENOTDIR)) continue;
    if (source < 0) die("isolation: cannot copy the mount %s: %s", path, strerror(errno));
    strcpy(mounts[count].path, path);
    mounts[count++].source = source;
  }
  return count;
}

/* Creates the mount point and the directories above it. */
static void make_mount_point(const char *root, const char *path, bool directory) {
  char partial[PATH_MAX];
  for (const char *slash = path + strlen(root); (slash = strchr(slash + 1, '/'));) {
    snprintf(partial, sizeof partial, "%.*s", (int)(slash - path), path);
    if (mkdir(partial, 0755) && errno != EEXIST) die("isolation: %s: %s", partial, strerror(errno));
  }
  int fd = directory ? -1 : open(path, O_CREAT | O_WRONLY | O_CLOEXEC | O_NOFOLLOW, 0444);
  if (directory ? mkdir(path, 0755) && errno != EEXIST : fd < 0) die("isolation: %s: %s", path, strerror(errno));
  if (fd >= 0) close(fd);
}

/* The kernel does not move a mount of a file without a name, as bubblewrap makes for small files. */
static void cover_with_copy(const struct inner_mount *inner) {
  static char text[MAX_COVER];
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", inner->source);
  int from = open(link, O_RDONLY | O_CLOEXEC), to = open(STAGE_FILE, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0444);
  ssize_t length = from < 0 ? -1 : read(from, text, sizeof text);
  if (length < 0 || length == sizeof text || to < 0 || write(to, text, (size_t)length) != length ||
      mount(STAGE_FILE, inner->path, NULL, MS_BIND, NULL) || unlink(STAGE_FILE))
    die("isolation: cannot copy %s: %s", inner->path, strerror(errno));
  close(from);
  close(to);
  unsigned long flags = MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV;
  if (mount(NULL, inner->path, NULL, flags, NULL)) die("isolation: %s: %s", inner->path, strerror(errno));
}

static void attach_inner(const char *root, struct inner_mount *mounts, size_t count) {
  for (size_t i = 0; i < count; i++) {
    struct stat stat;
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", mounts[i].source);
    if (fstat(mounts[i].source, &stat)) die("isolation: %s: %s", mounts[i].path, strerror(errno));
    if (strcmp(root, "/proc")) make_mount_point(root, mounts[i].path, S_ISDIR(stat.st_mode));
    if (S_ISREG(stat.st_mode) && !stat.st_nlink) cover_with_copy(&mounts[i]);
    else if (mount(link, mounts[i].path, NULL, MS_BIND | MS_REC, NULL))
      die("isolation: cannot mount on %s: %s", mounts[i].path, strerror(errno));
    close(mounts[i].source);
  }
}

/*
 * Mounts an empty tmpfs as large as the one at `like`; a directory of the host has no size of its own. It belongs to the
 * sandbox's root user, if there is one.
 */
static void mount_tmpfs(const char *path, const char *like, const char *mode, unsigned long flags) {
  struct statfs old;
  char data[128];
  unsigned owner = isolated_user.first_id;
  bool limited = !statfs(like, &old) && old.f_type == TMPFS_MAGIC && old.f_blocks;
  int length = snprintf(data, sizeof data, "mode=%s,uid=%u,gid=%u", mode, owner, owner);
  if (limited)
    snprintf(data + length, sizeof data - (size_t)length, ",size=%llu",
             (unsigned long long)old.f_blocks * (uint64_t)old.f_bsize);
  if (mount("tmpfs", path, "tmpfs", MS_NOSUID | flags, data)) die("isolation: %s: %s", path, strerror(errno));
}

static void replace_directory(const char *path, const char *mode) {
  static struct inner_mount inner[MAX_INNER];
  size_t count = clone_inner(path, inner);
  mount_tmpfs(path, path, mode, MS_NODEV);
  attach_inner(path, inner, count);
}

static void copy_link(int from, const char *name) {
  char target[PATH_MAX];
  ssize_t length = readlinkat(from, name, target, sizeof target - 1);
  if (length < 0) return;
  target[length] = 0;
  char path[PATH_MAX];
  snprintf(path, sizeof path, STAGE_DEV "/%s", name);
  if (symlink(target, path)) die("isolation: %s: %s", path, strerror(errno));
}

/* Devices are single files of the host that bubblewrap has mounted. */
static void copy_device(const char *name) {
  char from[300], to[300];
  snprintf(from, sizeof from, "/dev/%s", name);
  snprintf(to, sizeof to, STAGE_DEV "/%s", name);
  int fd = open(to, O_CREAT | O_WRONLY | O_CLOEXEC, 0444);
  if (fd < 0 || mount(from, to, NULL, MS_BIND, NULL)) die("isolation: %s: %s", from, strerror(errno));
  close(fd);
}

/* Shared memory is part of bubblewrap's /dev; elsewhere it is a tmpfs with a limit of its own. */
static void make_shared_memory(void) {
  struct stat all, shared;
  if (mkdir(STAGE_DEV "/shm", 01777)) die("isolation: /dev/shm: %s", strerror(errno));
  if (stat("/dev", &all) || stat("/dev/shm", &shared) || all.st_dev == shared.st_dev) return;
  mount_tmpfs(STAGE_DEV "/shm", "/dev/shm", "1777", MS_NODEV);
}

static void make_terminals(void) {
  char data[64];
  int length = snprintf(data, sizeof data, "newinstance,ptmxmode=0666,mode=620");
  if (has_root_user) snprintf(data + length, sizeof data - (size_t)length, ",gid=%u", isolated_user.first_id + 5);
  if (mkdir(STAGE_DEV "/pts", 0755) || mount("devpts", STAGE_DEV "/pts", "devpts", MS_NOSUID | MS_NOEXEC, data))
    die("isolation: /dev/pts: %s", strerror(errno));
  /* PLATFORM: gVisor takes the mode of new terminals for that of the directory. */
  struct stat stat_of;
  if (!stat(STAGE_DEV "/pts", &stat_of) && (stat_of.st_mode & 0777) != 0755) chmod(STAGE_DEV "/pts", 0755);
}

/* A /dev with the same devices and links, and nothing that commands put there. */
static void replace_devices(void) {
  if (mkdir(STAGE_DEV, 0755)) die("isolation: /dev: %s", strerror(errno));
  mount_tmpfs(STAGE_DEV, "/dev", "0755", 0);
  DIR *old = opendir("/dev");
  if (!old) die("isolation: /dev: %s", strerror(errno));
  static const char *const LINKS[] = {"fd", "stdin", "stdout", "stderr", "core", "ptmx"};
  static const char *const DEVICES[] = {"null", "zero", "full", "random", "urandom", "tty"};
  /* SECURITY: only known names; commands of the same sandbox may have created others before. */
  for (size_t i = 0; i < LENGTH(LINKS); i++) copy_link(dirfd(old), LINKS[i]);
  for (size_t i = 0; i < LENGTH(DEVICES); i++)
    if (!faccessat(dirfd(old), DEVICES[i], F_OK, 0)) copy_device(DEVICES[i]);
  closedir(old);
  make_shared_memory();
  make_terminals();
  if (mount(STAGE_DEV, "/dev", NULL, MS_BIND | MS_REC, NULL) || umount2(STAGE_DEV, MNT_DETACH) || rmdir(STAGE_DEV))
    die("isolation: /dev: %s", strerror(errno));
}

/* Shows the processes of the new PID namespace, with the same read-only and hidden parts as the sandbox's. */
static void replace_proc(void) {
  static struct inner_mount inner[MAX_INNER];
  size_t count = clone_inner("/proc", inner);
  if (mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL))
    die("isolation: /proc: %s", strerror(errno));
  attach_inner("/proc", inner, count);
  for (size_t i = 0; i < options.hidden.count; i++)
    if (is_within(options.hidden.items[i], "/proc")) hide_path(options.hidden.items[i]);
  for (size_t i = 0; i < options.readonly.count; i++)
    if (is_within(options.readonly.items[i], "/proc")) mount_readonly(options.readonly.items[i]);
}

static void raise_loopback(void) {
  struct ifreq request = {.ifr_name = "lo"};
  int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) die("isolation: loopback: %s", strerror(errno));
  request.ifr_flags = IFF_UP | IFF_RUNNING;
  /* PLATFORM: gVisor cannot change it; there a new network has one that is up. */
  bool up = !ioctl(fd, SIOCSIFFLAGS, &request) ||
            (errno == ENOTTY && !ioctl(fd, SIOCGIFFLAGS, &request) && request.ifr_flags & IFF_UP);
  if (!up) die("isolation: loopback: %s", strerror(errno));
  close(fd);
}

/* A directory of the host that was granted is shared, whatever its path is. */
static bool is_granted(const char *path) {
  for (size_t i = 0; i < host_mounts.count; i++)
    if (!strcmp(host_mounts.items[i], path)) return true;
  for (size_t i = 0; i < options.writable.count; i++)
    if (!strcmp(options.writable.items[i], path) && strcmp(path, "/tmp")) return true;
  return false;
}

/* Some engines mount further ones for programs that want to write there. */
static void replace_other_tmpfs(void) {
  static const char *const PATHS[] = {"/run", "/var/tmp"};
  struct statfs fs;
  struct stat stat;
  for (size_t i = 0; i < LENGTH(PATHS); i++) {
    if (is_granted(PATHS[i]) || lstat(PATHS[i], &stat) || !S_ISDIR(stat.st_mode)) continue;
    if (!statfs(PATHS[i], &fs) && fs.f_type == TMPFS_MAGIC) replace_directory(PATHS[i], i ? "1777" : "0755");
  }
}

void prepare_namespaces(void) {
  if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL)) die("isolation: mounts: %s", strerror(errno));
  if (is_granted("/tmp")) die("isolation: the sandbox mounts a directory on /tmp, which would be shared");
  replace_directory("/tmp", "1777");
  replace_other_tmpfs();
  if (has_root_user) {
    unsigned root = isolated_user.first_id;
    if (mkdir("/run/ringfence", 0755) || mkdir("/run/lock", 01777) || chown("/run/ringfence", root, root) ||
        chown("/run/lock", root, root))
      die("isolation: /run: %s", strerror(errno));
  }
  replace_devices();
  replace_proc();
  raise_loopback();
  /* The network belongs to another user namespace than the sandbox's root user. */
  if (has_root_user && isolated_user.is_elsewhere) write_text("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0");
}
