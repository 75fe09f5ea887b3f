#include "common/channel.h"
#include "machine/machine.h"

#include <dirent.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>

/*
 * `/init` of a virtual machine. It is root of the machine and runs no command itself: it creates one container, passes
 * the channel to the agent in it and waits.
 *
 *   container.c: common part ─ waiting ─▶ host ─ identity · expect · data … · go ─▶ container.c: the rest
 *
 * Snapshots are taken of a machine that waits there, so that all earlier work is done only once. SECURITY: clones of
 * one snapshot are identical including the state of the random number generator, so no command starts before the host
 * has sent an identity.
 */

struct machine machine = {.filter = -1, .helper = -1};
char disk_device[32], inputs_device[32];

void mount_on(const char *what, const char *where, const char *type, unsigned long flags, const char *options) {
  mkdir(where, 0755);
  if (mount(what, where, type, flags, options)) die("cannot mount %s: %s", where, strerror(errno));
}

static void load_module(const char *name) {
  char path[300];
  snprintf(path, sizeof path, "/modules/%s", name);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0 || (syscall(SYS_finit_module, fd, "", 0) && errno != EEXIST)) die("module %s: %s", name, strerror(errno));
  close(fd);
}

/* One module per line, in the order of their dependencies. */
static void load_modules(const char *list) {
  char names[4096];
  if (read_text_at(AT_FDCWD, list, names, sizeof names) < 0) die("%s: %s", list, strerror(errno));
  for (char *rest, *name = strtok_r(names, "\n", &rest); name; name = strtok_r(NULL, "\n", &rest)) load_module(name);
}

void sleep_ms(long ms) { nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL); }

/* A port appears some time after its driver is loaded. */
static bool find_port(char *device, size_t size) {
  DIR *ports = opendir("/sys/class/virtio-ports");
  bool found = false;
  for (struct dirent *entry; !found && ports && (entry = readdir(ports));) {
    char path[400], name[32];
    snprintf(path, sizeof path, "/sys/class/virtio-ports/%s/name", entry->d_name);
    if (entry->d_name[0] == '.' || read_text_at(AT_FDCWD, path, name, sizeof name) <= 0) continue;
    found = !strncmp(name, "agent", 5);
    if (found) snprintf(device, size, "/dev/%s", entry->d_name);
  }
  if (ports) closedir(ports);
  return found;
}

/* Without a virtio serial port the host connects by vsock. */
static int accept_vsock(void) {
  struct {
    unsigned short family, reserved;
    unsigned port, cid;
    unsigned char flags, zero[3];
  } address = {.family = 40 /* AF_VSOCK */, .port = VSOCK_PORT, .cid = ~0U};
  load_modules("/modules/vsock");
  int fd = socket(40, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 1)) return -1;
  return accept4(fd, NULL, NULL, SOCK_CLOEXEC);
}

static void open_channel(void) {
  char device[300];
  struct stat stat;
  for (int tries = 0; control_fd < 0 && tries < 2000; tries++) {
    if (find_port(device, sizeof device) && !lstat(device, &stat)) control_fd = open(device, O_RDWR | O_CLOEXEC);
    else if (tries == 1000) control_fd = accept_vsock();
    else sleep_ms(1);
  }
  if (control_fd < 0) reboot(RB_AUTOBOOT);
}

/* Finds a drive by the serial that the host gave it. A hypervisor without serials keeps the drives in order. */
static void find_drive(const char *wanted, char *device, size_t size) {
  for (char letter = 'a'; letter <= 'z'; letter++) {
    char path[64], name[32] = "";
    snprintf(path, sizeof path, "/sys/block/vd%c/serial", letter);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) break;
    bool found = read(fd, name, sizeof name - 1) > 0 && !strncmp(name, wanted, strlen(wanted));
    close(fd);
    if (!found) continue;
    snprintf(device, size, "/dev/vd%c", letter);
    return;
  }
  snprintf(device, size, "/dev/vd%c", !strcmp(wanted, "root") ? 'a' : !strcmp(wanted, "disk") ? 'b' : 'c');
}

/* The agent is outside of this cgroup: the limits of commands must not apply to it. */
static void create_cgroup(void) {
  write_text("/cgroup/cgroup.subtree_control", "+memory +pids +cpu");
  if (mkdir("/cgroup/work", 0755)) die("cgroup: %s", strerror(errno));
}

/* The agent in the container has no privileges. It asks for what needs some, and only when the host tells it to. */
static void serve_helper(int socket) {
  static char text[4096];
  for (ssize_t got; (got = recv(socket, text, sizeof text - 1, 0)) > 0;) {
    text[got] = 0;
    apply_identity(text, (size_t)got);
    if (send(socket, "", 1, MSG_NOSIGNAL) < 0) break;
  }
}

/* The container set O_NONBLOCK on the open file description that we share. */
static void make_channel_blocking(void) { fcntl(control_fd, F_SETFL, fcntl(control_fd, F_GETFL) & ~O_NONBLOCK); }

static int run_container(void) {
  int sockets[2], status = 0;
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets)) die("socketpair: %s", strerror(errno));
  pid_t child =
      (pid_t)syscall(SYS_clone, SIGCHLD | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS, 0, 0,
                     0, 0);
  if (child < 0) die("namespaces: %s", strerror(errno));
  if (child == 0) {
    close(sockets[0]);
    machine.helper = sockets[1];
    machine_container_main();
  }
  close(sockets[1]);
  serve_helper(sockets[0]);
  close(sockets[0]);
  waitpid(child, &status, 0);
  return status;
}

static void prepare_machine(void) {
  mount_on("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, "");
  mount_on("sys", "/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "");
  mount_on("dev", "/dev", "devtmpfs", MS_NOSUID, "");
  for (int fd = open("/dev/null", O_RDWR); fd >= 0 && fd < 3;) fd = open("/dev/null", O_RDWR);
  /* Every command moves into its cgroup; without favordynmods each move waits for an RCU grace period. */
  mount_on("cgroup", "/cgroup", "cgroup2", MS_NOSUID | MS_NODEV | MS_NOEXEC, "favordynmods");
  load_modules("/modules/order");
  open_channel();
  char device[32];
  find_drive("root", device, sizeof device);
  mount_on(device, "/root", "erofs", MS_RDONLY | MS_NOSUID | MS_NODEV, "");
  mkdir("/new", 0755);
  mkdir("/layer", 0755);
  find_drive("disk", disk_device, sizeof disk_device);
  find_drive("inputs", inputs_device, sizeof inputs_device);
  create_cgroup();
}

_Noreturn void machine_main(void) {
  umask(0);
  prepare_machine();
  for (;;) {
    int status = run_container();
    /* SECURITY: only the host can cause this exit code, and it does so only when no command ever ran. */
    if (!WIFEXITED(status) || WEXITSTATUS(status) != EXIT_LEFT) break;
    make_channel_blocking();
  }
  sync();
  reboot(RB_AUTOBOOT);
  for (;;) pause();
}
