#include "launch/writable_root.h"
#include "launch/id_mapping.h"
#include "launch/launch.h"
#include "supervise/resolve.h"

#include <grp.h>
#include <linux/loop.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/wait.h>

/*
 * A root file system that belongs to one sandbox, with a root user in it.
 *
 *   files                          id-mapped mount           overlay, in the sandbox's user namespace
 *   host programs, images      0 ─▶ first id of the range ─┐
 *   the sandbox's disk    STORED ─▶ first id of the range ─┴─▶ 0
 *
 * Ids 0 to 65535 of the sandbox are a range of host ids that no other live sandbox has. On a disk all files belong to one
 * stored range, as which no process ever runs: a range can be reused, and a disk copied, without touching a file. The disk
 * is a file system in a file: its size is the limit of everything that the sandbox writes.
 */

enum { MAX_LAYERS = 8, MAX_LOWERS = 64, MAX_OWN = 32 };

struct layer {
  const char *target;
  int first_lower, lowers; /* the topmost first */
};

static struct {
  bool wanted;
  unsigned stored, first, count;
  const char *locks;
  int lock;
  unsigned range; /* the first host id of this sandbox */
  int lower[MAX_LOWERS], lowers;
  struct layer layers[MAX_LAYERS];
  int layer_count;
  const char *own[MAX_OWN]; /* directories of `user` */
  int own_count;
  int image;
  struct {
    const char *mode, *target;
    int source;
    bool directory;
  } mounts[MAX_LOWERS];
  int mount_count;
} root = {.lock = -1, .image = -1};

static unsigned id_number(const char *text) {
  char *end;
  unsigned long value = strtoul(text, &end, 10);
  if (*end || value > 0xfffe0000ul) die("launch vector: bad id %s", text);
  return (unsigned)value;
}

void root_set_ids(char **arguments) {
  root.wanted = true;
  root.stored = id_number(arguments[0]);
  root.first = id_number(arguments[1]);
  root.count = id_number(arguments[2]);
  root.locks = arguments[3];
}

bool root_is_wanted(void) { return root.wanted; }
int root_lock(void) { return root.lock; }

void root_add_lower(char **arguments) {
  if (root.lowers == MAX_LOWERS) die("a root has too many layers");
  root.lower[root.lowers++] = open_source(arguments[0], arguments[1], arguments[2]);
}

/* Takes the lower directories since the last layer. */
void root_add_layer(char **arguments) {
  if (root.layer_count == MAX_LAYERS) die("a root has too many layers");
  const struct layer *last = root.layer_count ? &root.layers[root.layer_count - 1] : NULL;
  int first = last ? last->first_lower + last->lowers : 0;
  if (first == root.lowers || (!last && strcmp(arguments[0], "/"))) die("launch vector: bad layer %s", arguments[0]);
  root.layers[root.layer_count++] = (struct layer){arguments[0], first, root.lowers - first};
}

void root_set_disk(char **arguments) { root.image = open_source(arguments[0], arguments[1], arguments[2]); }

void root_add_own(char **arguments) {
  if (root.own_count == MAX_OWN) die("a root has too many directories");
  root.own[root.own_count++] = arguments[0];
}

static void add_mount(const char *mode, int source, const char *target, bool directory) {
  if (root.mount_count == MAX_LOWERS) die("a root has too many mounts");
  int i = root.mount_count++;
  root.mounts[i].mode = mode;
  root.mounts[i].source = source;
  root.mounts[i].target = target;
  root.mounts[i].directory = directory;
}

void root_add_mount(char **arguments) {
  struct stat stat;
  int source = open_source(arguments[1], arguments[2], arguments[3]);
  if (fstat(source, &stat)) die("cannot open %s: %s", arguments[1], strerror(errno));
  add_mount(arguments[0], source, arguments[4], S_ISDIR(stat.st_mode));
}

void root_add_tree(int tree, const char *target) { add_mount("tree", tree, target, true); }

/* The mode of the mount is the options of its file system. */
void root_add_temporary(char **arguments) { add_mount(arguments[1], -1, arguments[0], true); }

/*
 * SECURITY: the process that holds the lock has the range. PID 1 of the sandbox inherits it, so the kernel releases the range when
 * the sandbox is gone, however that happens, and not before.
 */
static bool lock_range(unsigned slot) {
  char path[PATH_MAX];
  snprintf(path, sizeof path, "%s/%u", root.locks, root.first + slot * ID_COUNT);
  int fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) die("cannot lock a range of ids: %s: %s", path, strerror(errno));
  if (flock(fd, LOCK_EX | LOCK_NB)) return close(fd), false;
  root.lock = fd;
  root.range = root.first + slot * ID_COUNT;
  return true;
}

static void take_range(void) {
  unsigned start = 0;
  if (getrandom(&start, sizeof start, 0) != sizeof start) die("getrandom: %s", strerror(errno));
  for (unsigned i = 0; i < root.count; i++)
    if (lock_range((start % root.count + i) % root.count)) return;
  die("all %u ranges of ids are in use", root.count);
}

/* SECURITY: root in a sandbox may have given the directory itself to a stored id; it was made by who runs us. */
static void volume_map(char *text, size_t size, unsigned owner) {
  if (owner - root.stored < ID_COUNT) owner = 0;
  snprintf(text, size, "%u %u 1\n%u %u %u\n%u %u %u", owner, root.range + USER_UID, root.stored, root.range, USER_UID,
           root.stored + USER_UID + 1, root.range + USER_UID + 1, (unsigned)ID_COUNT - USER_UID - 1);
}

/*
 * The user of the server, who made the directory of the volume, is the sandbox's `user`, as in sandboxes that have only one
 * user; other users own files as on a disk. So all sandboxes that mount a volume see the same owners.
 */
static int make_volume_namespace(void) {
  char users[128], groups[128];
  volume_map(users, sizeof users, geteuid());
  volume_map(groups, sizeof groups, getegid());
  return make_mapped_namespace(users, groups);
}

static int make_staged(int stage, const char *name, int index) {
  char path[64];
  snprintf(path, sizeof path, index < 0 ? "%s" : "%s-%d", name, index);
  int fd = mkdirat(stage, path, 0755) ? -1 : openat(stage, path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) die("cannot create %s/%s: %s", STAGE, path, strerror(errno));
  return fd;
}

/* A descriptor belongs to the mount namespace in which it was opened. */
static int reopen_stage(int before) {
  if (before >= 0) close(before);
  int stage = open(STAGE, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (stage < 0) die("%s: %s", STAGE, strerror(errno));
  return stage;
}

static int open_stage(void) {
  if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
    die("mount namespace: %s", strerror(errno));
  if ((mkdir(STAGE, 0755) && errno != EEXIST) ||
      mount("stage", STAGE, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=0755"))
    die("cannot mount %s: %s", STAGE, strerror(errno));
  return reopen_stage(-1);
}

enum { LOOP_ATTEMPTS = 64, BLOCK_SIZE_BYTES = 4096 };

/* Another process may take the free device between the two calls. The kernel detaches the device with its last user. */
static int attach_loop_device(int image, char *path, size_t size) {
  int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
  if (control < 0) die("cannot use loop devices: /dev/loop-control: %s", strerror(errno));
  for (int i = 0; i < LOOP_ATTEMPTS; i++) {
    struct loop_config config = {.fd = (uint32_t)image,
                                 .block_size = BLOCK_SIZE_BYTES,
                                 .info = {.lo_flags = LO_FLAGS_AUTOCLEAR}};
    int number = ioctl(control, LOOP_CTL_GET_FREE);
    if (number < 0) die("no loop device is free: %s", strerror(errno));
    snprintf(path, size, "/dev/loop%d", number);
    int device = open(path, O_RDWR | O_CLOEXEC);
    if (device < 0) die("%s: %s", path, strerror(errno));
    if (!ioctl(device, LOOP_CONFIGURE, &config)) return close(control), device;
    if (errno != EBUSY) die("%s: %s", path, strerror(errno));
    close(device);
  }
  die("no loop device is free");
}

/* The directories of the layers, which belong to the stored root user. */
static void make_disk_directory(int at, const char *name, unsigned id) {
  if (mkdirat(at, name, 0755) && errno != EEXIST) die("the sandbox's disk: %s: %s", name, strerror(errno));
  int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0 || fchown(fd, id, id)) die("the sandbox's disk: %s: %s", name, strerror(errno));
  close(fd);
}

static void prepare_disk(int disk) {
  for (int i = 0; i < root.layer_count; i++) {
    char name[32];
    snprintf(name, sizeof name, "upper-%d", i);
    make_disk_directory(disk, name, root.stored);
    snprintf(name, sizeof name, "work-%d", i);
    make_disk_directory(disk, name, root.stored);
  }
}

/* Mounts the disk without a name, translates its ids and attaches it as STAGE/disk. */
static void stage_disk(int stage, int stored) {
  char path[32], link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", root.image);
  int image = open(link, O_RDWR | O_CLOEXEC), target = make_staged(stage, "disk", -1);
  if (image < 0) die("the sandbox's disk: %s", strerror(errno));
  int device = attach_loop_device(image, path, sizeof path);
  /*
   * Nothing on this disk has to survive a crash of the host, so a sync does not wait for the real disk. A sparse file is
   * zeroed already.
   */
  if (mount(path, STAGE "/disk", "ext4", MS_NOSUID | MS_NODEV | MS_NOATIME, "discard,nobarrier,noinit_itable"))
    die("cannot mount the sandbox's disk: %s", strerror(errno));
  close(device);
  close(image);
  close(root.image);
  close(target);
  int disk = openat(stage, "disk", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (disk < 0) die("the sandbox's disk: %s", strerror(errno));
  prepare_disk(disk);
  target = make_staged(stage, "changes", -1);
  attach(mapped_tree(disk, 0, stored), target, "the sandbox's disk");
  close(target);
  if (umount2(STAGE "/disk", MNT_DETACH)) die("%s/disk: %s", STAGE, strerror(errno));
}

/* PLATFORM: a mount can be copied only in its own mount namespace, so this comes before we enter another. */
static int copy_mount(int source, const char *mode) {
  bool translated = !strncmp(mode, "stored", 6), readonly = !strcmp(mode, "ro") || !strcmp(mode, "stored-ro");
  int volume = translated ? make_volume_namespace() : -1;
  int tree = mapped_tree(source, readonly ? MOUNT_RDONLY : 0, volume);
  if (volume >= 0) close(volume);
  return tree;
}

static void copy_mounts(int range) {
  for (int i = 0; i < root.lowers; i++) root.lower[i] = mapped_tree(root.lower[i], MOUNT_RDONLY, range);
  for (int i = 0; i < root.mount_count; i++)
    if (root.mounts[i].source >= 0 && strcmp(root.mounts[i].mode, "tree"))
      root.mounts[i].source = copy_mount(root.mounts[i].source, root.mounts[i].mode);
}

static void stage_lowers(int stage) {
  for (int i = 0; i < root.lowers; i++) {
    int target = make_staged(stage, "lower", i);
    attach(root.lower[i], target, "a lower layer");
    close(target);
  }
}

/* From here on we are the sandbox's root user, and on the host a user without any rights. */
static void become_root_user(int range) {
  if (setgroups(0, NULL) || setns(range, CLONE_NEWUSER) || setresgid(0, 0, 0) || setresuid(0, 0, 0) ||
      unshare(CLONE_NEWNS))
    die("cannot enter the user namespace of the sandbox: %s", strerror(errno));
}

int open_in_root(int at, const char *path, uid_t owner) {
  int fd = fcntl(at, F_DUPFD_CLOEXEC, 3);
  while (*(path += strspn(path, "/"))) {
    char name[NAME_MAX + 1];
    size_t length = strcspn(path, "/");
    if (length > NAME_MAX) die("a mount point has a long name");
    memcpy(name, path, length);
    name[length] = 0;
    path += length;
    bool created = !mkdirat(fd, name, 0755);
    if (!created && errno != EEXIST) die("cannot create %s in the root: %s", name, strerror(errno));
    int next = openat(fd, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (next < 0) return close(fd), -1;
    if (created && !path[strspn(path, "/")] && fchownat(next, "", owner, owner, AT_EMPTY_PATH))
      die("cannot change the owner of %s: %s", name, strerror(errno));
    close(fd);
    fd = next;
  }
  return fd;
}

static void mount_layer(int stage, int index) {
  const struct layer *layer = &root.layers[index];
  char options[4096], path[64];
  int used = snprintf(options, sizeof options, "userxattr,upperdir=%s/changes/upper-%d,workdir=%s/changes/work-%d",
                      STAGE, index, STAGE, index);
  for (int i = 0; i < layer->lowers; i++)
    used += snprintf(options + used, sizeof options - (size_t)used, "%s%s/lower-%d", i ? ":" : ",lowerdir=", STAGE,
                     layer->first_lower + i);
  int merged = openat(stage, "root", O_PATH | O_DIRECTORY | O_CLOEXEC);
  int target = merged < 0 ? -1 : open_in_root(merged, layer->target, 0);
  if (target < 0) die("%s in the root is not a directory", layer->target);
  snprintf(path, sizeof path, "/proc/self/fd/%d", target);
  if (mount("overlay", path, "overlay", MS_NOSUID | MS_NODEV, options))
    die("cannot mount the root's layer %s: %s", layer->target, strerror(errno));
  close(target);
  close(merged);
}

int open_file_in_root(int at, const char *path) {
  char directory[PATH_MAX];
  snprintf(directory, sizeof directory, "%s", path);
  char *name = strrchr(directory, '/');
  if (!name) die("a mount point is not absolute");
  *name++ = 0;
  int parent = open_in_root(at, directory, 0);
  if (parent < 0) die("%s in the root is not a directory", directory);
  int created = openat(parent, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
  if (created >= 0) close(created);
  int fd = openat(parent, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
  struct stat stat;
  if (fd < 0 || fstat(fd, &stat) || !S_ISREG(stat.st_mode)) die("%s in the root is not a file", path);
  close(parent);
  return fd;
}

static void mount_temporary(int target, const char *path, const char *options) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", target);
  if (mount("tmpfs", link, "tmpfs", MS_NOSUID | MS_NODEV, options))
    die("cannot mount on %s: %s", path, strerror(errno));
}

static void attach_mounts(int merged) {
  for (int i = 0; i < root.mount_count; i++) {
    const char *path = root.mounts[i].target;
    int target = root.mounts[i].directory ? open_in_root(merged, path, 0) : open_file_in_root(merged, path);
    if (target < 0) die("%s in the root is not a directory", path);
    if (root.mounts[i].source < 0) mount_temporary(target, path, root.mounts[i].mode);
    else attach(root.mounts[i].source, target, path);
    close(target);
  }
}

/* Where bubblewrap mounts: it follows symbolic links, so these must be directories before it starts. */
static const char *const MOUNT_POINTS[] = {"proc", "dev", "tmp", "run", "sys"};

static void make_mount_point(int merged, const char *name) {
  int fd = open_in_root(merged, name, 0);
  if (fd < 0 && !unlinkat(merged, name, 0)) fd = open_in_root(merged, name, 0);
  if (fd < 0) die("/%s in the root is not a directory", name);
  close(fd);
}

/* A directory of `user` where there is nothing yet; root may have put something else there. */
static void make_own_directory(int merged, const char *path) {
  int fd = open_in_root(merged, path, USER_UID);
  if (fd >= 0) close(fd);
}

void root_assemble(void) {
  if (root.image < 0 || !root.layer_count) die("launch vector: an incomplete root");
  take_range();
  int range = make_user_namespace(0, root.range), stored = make_user_namespace(root.stored, root.range);
  copy_mounts(range);
  int stage = open_stage();
  close(make_staged(stage, "root", -1));
  stage_lowers(stage);
  stage_disk(stage, stored);
  become_root_user(range);
  stage = reopen_stage(stage);
  umask(022);
  for (int i = 0; i < root.layer_count; i++) mount_layer(stage, i);
  int merged = openat(stage, "root", O_PATH | O_DIRECTORY | O_CLOEXEC);
  for (int i = 0; i < root.own_count; i++) make_own_directory(merged, root.own[i]);
  for (size_t i = 0; i < LENGTH(MOUNT_POINTS); i++) make_mount_point(merged, MOUNT_POINTS[i]);
  attach_mounts(merged);
  close(merged);
  close(stage);
  close(range);
  close(stored);
  fcntl(root.lock, F_SETFD, 0);
}
