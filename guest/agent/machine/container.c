#include "init/config.h"
#include "init/confine.h"
#include "init/init.h"
#include "isolate/isolate.h"
#include "limits/limits.h"
#include "machine/machine.h"
#include "session/session.h"
#include "supervise/resolve.h"

#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/sysmacros.h>

/*
 * The container in a virtual machine, with a root directory of its own and a user without privileges in the machine. It
 * starts as PID 1 and root; at the end it is not root and cannot reach the machine's files, devices and cgroups.
 */

/*
 * Fills a file that was prepared in the upper layer. Anything else at this path comes from the image and is replaced.
 */
static void create_file(const char *path, mode_t mode, const char *text) {
  struct stat stat;
  bool ours = !lstat(path, &stat) && S_ISREG(stat.st_mode) && stat.st_size == 0 && (stat.st_mode & 07777) == mode;
  if (!ours) unlink(path);
  int fd = open(path, O_WRONLY | O_NOFOLLOW | O_CLOEXEC | (ours ? 0 : O_CREAT | O_EXCL), mode);
  if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text))
    die("cannot write %s: %s", path, strerror(errno));
  close(fd);
}

static void mount_at(const char *what, const char *where, const char *type, unsigned long flags, const char *data) {
  if (mount(what, where, type, flags, data)) die("cannot mount %s: %s", where, strerror(errno));
}

/* Creates the directories of a path; the last component only where it is a directory itself. */
static void create_parents(const char *path, bool include_last) {
  char partial[PATH_MAX];
  snprintf(partial, sizeof partial, "%s", path);
  for (char *slash = partial + 1; (slash = strchr(slash, '/')); slash++) {
    *slash = 0;
    mkdir(partial, 0755);
    *slash = '/';
  }
  if (include_last) mkdir(partial, 0755);
}

static const char *const REPLACED_FILES[] = {"/layer/upper/etc/passwd", "/layer/upper/etc/group",
                                             "/layer/upper/etc/hosts", "/layer/upper/etc/hostname",
                                             "/layer/upper/etc/machine-id"};

/* The image with a tmpfs over it. Mount points and small files are created there; later the root becomes read-only. */
static void build_root(void) {
  mount_at("layer", "/layer", "tmpfs", MS_NOSUID | MS_NODEV, "size=16m,mode=0755");
  mkdir("/layer/upper", 0755);
  mkdir("/layer/work", 0755);
  mkdir("/layer/upper/etc", 0755);
  /* Replacing a file of the image is slow, so these are replaced before a command waits. */
  for (size_t i = 0; i < LENGTH(REPLACED_FILES); i++) create_file(REPLACED_FILES[i], 0444, "");
  mount_at("root", "/new", "overlay", MS_NOSUID | MS_NODEV, "lowerdir=/root,upperdir=/layer/upper,workdir=/layer/work");
}

static void device(const char *name, unsigned major_number, unsigned minor_number) {
  char path[64];
  snprintf(path, sizeof path, "/new/dev/%s", name);
  if (mknod(path, S_IFCHR | 0666, makedev(major_number, minor_number))) die("%s: %s", path, strerror(errno));
}

static void build_dev(void) {
  mkdir("/new/dev", 0755);
  mount_at("dev", "/new/dev", "tmpfs", MS_NOSUID | MS_NOEXEC, "size=8m,mode=0755");
  device("null", 1, 3);
  device("zero", 1, 5);
  device("full", 1, 7);
  device("random", 1, 8);
  device("urandom", 1, 9);
  device("tty", 5, 0);
  mkdir("/new/dev/pts", 0755);
  mkdir("/new/dev/shm", 01777);
  mount_at("pts", "/new/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620");
  mount_at("shm", "/new/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777,size=4k");
  static const char *const LINKS[][2] = {{"pts/ptmx", "/new/dev/ptmx"},
                                         {"/proc/self/fd", "/new/dev/fd"},
                                         {"/proc/self/fd/0", "/new/dev/stdin"},
                                         {"/proc/self/fd/1", "/new/dev/stdout"},
                                         {"/proc/self/fd/2", "/new/dev/stderr"}};
  for (size_t i = 0; i < LENGTH(LINKS); i++)
    if (symlink(LINKS[i][0], LINKS[i][1])) die("%s: %s", LINKS[i][1], strerror(errno));
}

static void mount_private_directories(void) {
  mkdir("/new/proc", 0755);
  mkdir("/new/tmp", 01777);
  mount_at("proc", "/new/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, "");
  mount_at("tmp", "/new/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777,size=4k");
}

/* Until the host tells the size, nothing fits. */
static void resize_private_directories(const char *size) {
  static const char *const SIZED[] = {"/new/tmp", "/new/dev/shm"};
  char data[64];
  snprintf(data, sizeof data, "mode=1777,size=%s", size);
  for (size_t i = 0; i < LENGTH(SIZED); i++) mount_at(NULL, SIZED[i], NULL, MS_REMOUNT | MS_NOSUID | MS_NODEV, data);
}

/* The shortest path comes first, because a mount may lie inside another one. */
static void bind_mounts(void) {
  for (size_t i = 0; i < machine.mount_count; i++) {
    const struct machine_mount *entry = &machine.mounts[i];
    char source[PATH_MAX], target[PATH_MAX];
    bool file = !strcmp(entry->kind, "file");
    if (file) snprintf(source, sizeof source, "/data/%zu/%s", i, entry->name);
    else snprintf(source, sizeof source, "/%s/%zu", !strcmp(entry->kind, "image") ? "inputs" : "data", i);
    snprintf(target, sizeof target, "/new%s", entry->target);
    create_parents(target, !file);
    if (file) close(open(target, O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
    mount_at(source, target, NULL, MS_BIND, NULL);
    unsigned long flags = MS_NOSUID | MS_NODEV | (strcmp(entry->mode, "rw") ? MS_RDONLY : 0);
    mount_at(NULL, target, NULL, MS_REMOUNT | MS_BIND | flags, NULL);
  }
}

static void write_files(void) {
  char path[PATH_MAX];
  if (machine.id[0]) create_file("/new/etc/machine-id", 0444, machine.id);
  for (size_t i = 0; i + 1 < machine.files.count; i += 2) {
    snprintf(path, sizeof path, "/new%s", machine.files.items[i]);
    create_parents(path, false);
    create_file(path, 0444, machine.files.items[i + 1]);
  }
}

/*
 * Views of the kernel. Everything else in /proc that matters belongs to the machine's root, which is not mapped here.
 */
static const char *const HIDDEN[] = {"/new/proc/kallsyms", "/new/proc/modules", "/new/proc/kcore", "/new/proc/keys",
                                     "/new/proc/key-users"};

static void unmount_all(const char *const *mount_points) {
  for (; *mount_points; mount_points++) umount2(*mount_points, MNT_DETACH);
}

static void enter_root(void) {
  static const char *const MACHINE_MOUNTS[] = {"/dev",  "/cgroup", "/proc", "/data", "/inputs",
                                               "/root", "/lower",  "/disk", NULL};
  unsigned long writable = machine.root ? 0 : MS_RDONLY;
  mount_at(NULL, "/new", NULL, MS_REMOUNT | MS_BIND | MS_NOSUID | MS_NODEV | writable, NULL);
  unmount_all(MACHINE_MOUNTS);
  /* PLATFORM: the initial root cannot be replaced by pivot_root, only covered. */
  if (chdir("/new") || mount(".", "/", NULL, MS_MOVE, NULL) || chroot(".") || chdir("/"))
    die("cannot enter the new root: %s", strerror(errno));
}

static void raise_loopback(void) {
  struct ifreq request = {.ifr_name = "lo"};
  int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  request.ifr_flags = IFF_UP | IFF_RUNNING;
  if (fd < 0 || ioctl(fd, SIOCSIFFLAGS, &request)) die("loopback: %s", strerror(errno));
  close(fd);
}

/* Opened while we are root; each command writes itself into the cgroup. */
static void open_cgroup(void) {
  commands_cgroup = open("/cgroup/work/cgroup.procs", O_WRONLY | O_CLOEXEC);
  memory_events = open("/cgroup/work/memory.events", O_RDONLY | O_CLOEXEC);
  pids_events = open("/cgroup/work/pids.events", O_RDONLY | O_CLOEXEC);
  if (commands_cgroup < 0 || memory_events < 0 || pids_events < 0) die("cgroup: %s", strerror(errno));
}

/* The sandbox's user may have any uid inside, even 0; in the machine it is SANDBOX_UID, without privileges. */
static void become_sandbox_user(void) {
  if (syscall(SYS_setgroups, 0, NULL) || setresgid(SANDBOX_UID, SANDBOX_UID, SANDBOX_UID) ||
      setresuid(SANDBOX_UID, SANDBOX_UID, SANDBOX_UID))
    die("cannot switch to the sandbox user: %s", strerror(errno));
  prctl(PR_SET_DUMPABLE, 1, 0, 0, 0); /* required to write our own uid_map */
  map_user(machine.uid, machine.gid, SANDBOX_UID);
  limit_user_namespaces(false);
}

/* Everything that does not depend on the sandbox; done before the machine is snapshotted. */
static void build_common(void) {
  static const char *const SETUP_MOUNTS[] = {"/sys", "/layer", NULL};
  if (unshare(CLONE_NEWCGROUP) || prctl(PR_SET_NAME, "agent", 0, 0, 0)) die("namespaces: %s", strerror(errno));
  mount_at(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL);
  raise_loopback();
  open_cgroup();
  build_root();
  build_dev();
  mount_private_directories();
  for (size_t i = 0; i < LENGTH(HIDDEN); i++) hide_path(HIDDEN[i]);
  unmount_all(SETUP_MOUNTS);
}

/* The isolator stays the machine's root user: only he may mount a /proc for each command. */
static void start_isolator(void) {
  struct isolated_user user = {.is_elsewhere = true, .yields = true, .on_linux = true, .first_id = machine.root};
  if (!machine.root) user.uid = (unsigned)atoi(machine.uid), user.gid = (unsigned)atoi(machine.gid);
  landlock_set_scope();
  isolator_start(machine.filter, user);
}

static void become_user_of_sandbox(void) {
  if (options.isolate) start_isolator();
  if (machine.root) become_machine_root_user();
  else become_sandbox_user();
  if (options.isolate) isolator_enter_users();
}

static void enter_readonly_root(void) {
  write_files();
  bind_mounts();
  enter_root();
  become_user_of_sandbox();
}

static void enter_writable_root(void) {
  build_writable_root();
  bind_in_writable_root();
  enter_root();
  become_user_of_sandbox();
  fill_writable_root();
}

_Noreturn void machine_container_main(void) {
  build_common();
  receive_setup();
  parse_config(machine.config, machine.config_length);
  resize_private_directories(machine.tmp ? machine.tmp : "50%");
  if (machine.root) enter_writable_root();
  else enter_readonly_root();
  resolve_setup();
  if (machine.root) keep_root_capabilities();
  else drop_privileges(true);
  machine_helper = machine.helper;
  machine_token = machine.token;
  files_copied_at = machine.files_copied_at;
  serve_in_container(machine.filter);
}
