#include "init/confine.h"
#include "supervise/resolve.h"

#include <sys/mount.h>

#define TREE_CLONE 1
#define TREE_CLOEXEC O_CLOEXEC
#define TREE_RECURSIVE 0x8000
#define MOVE_FROM_EMPTY 0x4
#define MOVE_TO_EMPTY 0x40
#define ATTR_RDONLY 0x1
#define ATTR_NOSUID 0x2
#define ATTR_NODEV 0x4

struct attributes {
  uint64_t set, clear, propagation, userns_fd;
};

static int clone_tree(const char *path) {
  return (int)syscall(SYS_open_tree, AT_FDCWD, path, TREE_CLONE | TREE_CLOEXEC | TREE_RECURSIVE);
}

static void set_attributes(int tree, uint64_t attributes, const char *path) {
  struct attributes wanted = {.set = attributes};
  if (syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH | TREE_RECURSIVE, &wanted, sizeof wanted))
    die("cannot set mount attributes of %s: %s", path, strerror(errno));
}

/* SECURITY: the target was opened without following symbolic links, so one that a command planted is refused. */
static void attach_tree(int tree, int target, const char *path) {
  if (syscall(SYS_move_mount, tree, "", target, "", MOVE_FROM_EMPTY | MOVE_TO_EMPTY))
    die("cannot mount on %s: %s", path, strerror(errno));
}

void mount_readonly(const char *path) {
  int target = open_no_symlinks(AT_FDCWD, path, O_PATH);
  if (target < 0 && errno == ENOENT) return;
  int tree = clone_tree(path);
  if (target < 0 || tree < 0) die("cannot open %s: %s", path, strerror(errno));
  set_attributes(tree, ATTR_RDONLY, path);
  attach_tree(tree, target, path);
  close(tree);
  close(target);
}

static bool cover(int target, bool directory) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", target);
  return directory ? !mount("mask", link, "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, "size=4k,mode=0")
                   : !mount("/dev/null", link, NULL, MS_BIND, NULL);
}

void hide_path(const char *path) {
  int target = open_no_symlinks(AT_FDCWD, path, O_PATH);
  struct stat stat;
  if (target < 0 && errno == ENOENT) return;
  if (target < 0 || fstat(target, &stat) || !cover(target, S_ISDIR(stat.st_mode)))
    die("cannot hide %s: %s", path, strerror(errno));
  close(target);
}

void mask_path(const char *path, const char *dev, const char *ino) {
  int target = open_no_symlinks(AT_FDCWD, path, O_PATH);
  struct stat stat;
  if (target < 0 || fstat(target, &stat)) die("cannot open %s: %s", path, strerror(errno));
  if (stat.st_dev != strtoull(dev, NULL, 10) || stat.st_ino != strtoull(ino, NULL, 10))
    die("%s was replaced after the policy checked it", path);
  if (!cover(target, S_ISDIR(stat.st_mode))) die("cannot mask %s: %s", path, strerror(errno));
  close(target);
}

void move_mount_to(const char *staged, const char *path, const char *mode) {
  int tree = clone_tree(staged), target = open_no_symlinks(AT_FDCWD, path, O_PATH);
  if (tree < 0 || target < 0) die("cannot mount on %s: %s", path, strerror(errno));
  set_attributes(tree, strcmp(mode, "rw") ? ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV : ATTR_NOSUID | ATTR_NODEV, path);
  attach_tree(tree, target, path);
  close(tree);
  close(target);
  if (umount2(staged, MNT_DETACH)) die("cannot detach %s: %s", staged, strerror(errno));
}

void mount_overlay(const char *original, const char *changes, const char *path) {
  char options[PATH_MAX], link[64];
  int target = open_no_symlinks(AT_FDCWD, path, O_PATH | O_DIRECTORY);
  snprintf(link, sizeof link, "/proc/self/fd/%d", target);
  snprintf(options, sizeof options, "lowerdir=%s,upperdir=%s/upper,workdir=%s/work,userxattr", original, changes,
           changes);
  if (target < 0 || mount("overlay", link, "overlay", MS_NOSUID | MS_NODEV, options))
    die("cannot mount an overlay on %s: %s", path, strerror(errno));
  close(target);
  /* SECURITY: the layers themselves must not be reachable. */
  if (umount2(original, MNT_DETACH) || umount2(changes, MNT_DETACH))
    die("cannot detach %s: %s", changes, strerror(errno));
}

/* Programs that open terminals for others (sshd) want them to belong to the group `tty`, and only root could change that
   afterwards. Without this they work except for terminals, so a kernel that refuses is no reason to stop. */
void give_terminals_to_tty(void) {
  mount(NULL, "/dev/pts", NULL, MS_REMOUNT | MS_NOSUID | MS_NOEXEC, "gid=5,mode=620,ptmxmode=666");
}
