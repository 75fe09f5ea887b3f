#include "launch/writable_root.h"
#include "init/confine.h"
#include "launch/id_mapping.h"
#include "machine/machine.h"

#include <grp.h>
#include <sched.h>
#include <sys/mount.h>

/*
 * The writable root of a sandbox in a virtual machine: an overlay of the image and the sandbox's own disk. Root in it is a range of
 * ids without privileges in the machine, as on a host: the agent, the devices and the kernel stay out of its reach.
 */

static const char *const KEPT[] = {"proc", "dev", "tmp"};
static int user_namespace = -1, agent_file = -1;
static bool is_new_disk;

static void mount_or_die(const char *what, const char *where, const char *type, unsigned long flags,
                         const char *options) {
  if (mount(what, where, type, flags, options)) die("cannot mount %s: %s", where, strerror(errno));
}

/* SECURITY: the sandbox may have run before, on this disk, and have put something else there. */
static void make_mount_point(const char *path) {
  struct stat stat;
  if (!lstat(path, &stat) && !S_ISDIR(stat.st_mode)) unlink(path);
  if (mkdir(path, 0755) && errno != EEXIST) die("cannot create %s: %s", path, strerror(errno));
}

static void move_kept_mounts(const char *from, const char *to) {
  char source[64], target[64];
  for (size_t i = 0; i < LENGTH(KEPT); i++) {
    snprintf(source, sizeof source, "%s/%s", from, KEPT[i]);
    snprintf(target, sizeof target, "%s/%s", to, KEPT[i]);
    make_mount_point(target);
    mount_or_die(source, target, NULL, MS_MOVE, NULL);
  }
}

/* Names as on disks of the host's own sandboxes. */
static void prepare_disk(void) {
  static const char *const DIRECTORIES[] = {"/disk/upper-0", "/disk/work-0"};
  mount_on(disk_device, "/disk", "ext4", MS_NOSUID | MS_NODEV | MS_NOATIME, "noinit_itable");
  is_new_disk = access(DIRECTORIES[0], F_OK) != 0;
  for (size_t i = 0; i < LENGTH(DIRECTORIES); i++) {
    const char *path = DIRECTORIES[i];
    if ((mkdir(path, 0755) && errno != EEXIST) || lchown(path, machine.root, machine.root))
      die("the sandbox's disk: %s: %s", path, strerror(errno));
  }
}

/* The image belongs to the machine's root user; here it belongs to the sandbox's. */
static void translate_image(void) {
  mkdir("/lower", 0755);
  int image = open("/root", O_PATH | O_DIRECTORY | O_CLOEXEC), target = open("/lower", O_PATH | O_CLOEXEC);
  if (image < 0 || target < 0) die("the image: %s", strerror(errno));
  attach(mapped_tree(image, MOUNT_RDONLY, user_namespace), target, "/lower");
  close(target);
}

/* PLATFORM: /proc of the machine shows other numbers than those that we have for our children. */
static void make_range(void) {
  mount_or_die("/aside/proc", "/proc", NULL, MS_BIND | MS_REC, NULL);
  user_namespace = make_user_namespace(0, machine.root);
  umount2("/proc", MNT_DETACH);
}

void build_writable_root(void) {
  char options[64];
  mkdir("/aside", 0755);
  move_kept_mounts("/new", "/aside");
  umount2("/new", MNT_DETACH);
  prepare_disk();
  make_range();
  translate_image();
  mount_or_die("root", "/new", "overlay", MS_NOSUID | MS_NODEV,
               "lowerdir=/lower,upperdir=/disk/upper-0,workdir=/disk/work-0");
  move_kept_mounts("/aside", "/new");
  make_mount_point("/new/run");
  snprintf(options, sizeof options, "mode=0755,size=16m,uid=%u,gid=%u", machine.root, machine.root);
  mount_or_die("run", "/new/run", "tmpfs", MS_NOSUID | MS_NODEV, options);
  /* The network of the container does not belong to the sandbox's user namespace. */
  write_text("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0");
  agent_file = open("/init", O_RDONLY | O_CLOEXEC);
}

static void bind_copy(size_t number, int root) {
  const struct machine_mount *entry = &machine.mounts[number];
  bool file = !strcmp(entry->kind, "file");
  char source[PATH_MAX], target[64];
  if (file) snprintf(source, sizeof source, "/data/%zu/%s", number, entry->name);
  else snprintf(source, sizeof source, "/%s/%zu", !strcmp(entry->kind, "image") ? "inputs" : "data", number);
  int fd = file ? open_file_in_root(root, entry->target) : open_in_root(root, entry->target, machine.root);
  if (fd < 0) die("%s in the root is not a directory", entry->target);
  snprintf(target, sizeof target, "/proc/self/fd/%d", fd);
  mount_or_die(source, target, NULL, MS_BIND, NULL);
  close(fd);
  /* The descriptor is the mount point; what was mounted on it has to be opened again. */
  fd = file ? open_file_in_root(root, entry->target) : open_in_root(root, entry->target, machine.root);
  snprintf(target, sizeof target, "/proc/self/fd/%d", fd);
  mount_or_die(NULL, target, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV, NULL);
  close(fd);
}

void bind_in_writable_root(void) {
  int root = open("/new", O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (root < 0) die("/new: %s", strerror(errno));
  for (size_t i = 0; i < machine.mount_count; i++) bind_copy(i, root);
  close(root);
}

void become_machine_root_user(void) {
  if (setgroups(0, NULL) || setns(user_namespace, CLONE_NEWUSER) || setresgid(0, 0, 0) || setresuid(0, 0, 0))
    die("cannot become the root user: %s", strerror(errno));
  close(user_namespace);
  limit_user_namespaces(false);
}

/*
 * As the sandbox's root user: links that it left lead nowhere else. A sandbox that broke its own directories, or whose disk is full,
 * still starts, so that it can be repaired.
 */
static int replace_file(const char *path, mode_t mode) {
  char parent[PATH_MAX];
  snprintf(parent, sizeof parent, "%s", path);
  for (char *slash = parent + 1; (slash = strchr(slash, '/')); *slash++ = '/') *slash = 0, mkdir(parent, 0755);
  unlink(path);
  int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
  return fd;
}

static void write_files(const struct strings *files) {
  for (size_t i = 0; i + 1 < files->count; i += 2) {
    int fd = replace_file(files->items[i], 0644);
    if (fd < 0) continue;
    (void)!write(fd, files->items[i + 1], strlen(files->items[i + 1]));
    close(fd);
  }
}

static void copy_agent(const char *path) {
  char bytes[16384];
  int fd = replace_file(path, 0755);
  for (ssize_t got; fd >= 0 && (got = read(agent_file, bytes, sizeof bytes)) > 0;)
    if (write(fd, bytes, (size_t)got) != got) break;
  if (fd >= 0) close(fd);
  close(agent_file);
}

/* What every system has; an image of single programs may not. */
static const char *const DIRECTORIES[] = {"/opt", "/srv",     "/mnt",     "/media",        "/home",      "/root",
                                          "/usr", "/var",     "/var/lib", "/var/log",      "/var/cache", "/usr/local",
                                          "/etc", "/var/tmp", "/usr/bin", "/usr/local/bin"};

static void make_directories(void) {
  for (size_t i = 0; i < LENGTH(DIRECTORIES); i++) mkdir(DIRECTORIES[i], 0755);
  chmod("/var/tmp", 01777);
}

void fill_writable_root(void) {
  struct strings id = {0};
  umask(022);
  strings_add(&id, "/etc/machine-id");
  strings_add(&id, machine.id);
  write_files(&id);
  if (is_new_disk) make_directories(), write_files(&machine.first_files);
  write_files(&machine.files);
  for (size_t i = 0; i < machine.own.count; i++) {
    int root = open("/", O_PATH | O_CLOEXEC), fd = open_in_root(root, machine.own.items[i], USER_UID);
    if (fd >= 0) close(fd);
    close(root);
  }
  copy_agent("/usr/bin/sudo");
  mkdir("/run/ringfence", 0755);
  mkdir("/run/lock", 0755);
  chmod("/run/lock", 01777);
  umask(0);
}
