#include "agent.h"

#include <dirent.h>
#include <linux/random.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/reboot.h>
#include <sys/socket.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <time.h>

#include "machine.h"

/*
 * `/init` of a virtual machine. It is root of the guest and runs nothing of a guest's itself: it makes one container
 * for the commands, hands the channel to the agent in it and waits.
 *
 *   container.c, as far as it is the same for all ─ waiting ─▶ host ─ identity · places · data … · go ─▶ the rest of it
 *
 * A machine that waits there is what snapshots are made of: an emulator reads every part of the kernel anew after a clone,
 * so what was done before costs nothing. SECURITY: clones of one snapshot are the same down to the last random byte, so
 * nothing of a guest starts before the host has told this one who it is.
 */

struct machine machine = {.filter = -1, .helper = -1};

static void mount_on(const char *what, const char *where, const char *type, unsigned long flags, const char *options) {
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

/* One name a line, each after what it needs. */
static void load_modules(const char *list) {
  char names[4096];
  int fd = open(list, O_RDONLY | O_CLOEXEC);
  ssize_t length = fd < 0 ? -1 : read(fd, names, sizeof names - 1);
  if (length < 0) die("%s: %s", list, strerror(errno));
  close(fd);
  names[length] = 0;
  for (char *rest, *name = strtok_r(names, "\n", &rest); name; name = strtok_r(NULL, "\n", &rest)) load_module(name);
}

static void sleep_ms(long ms) { nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL); }

/* Ports appear some time after their driver. */
static bool find_port(char *device, size_t size) {
  DIR *ports = opendir("/sys/class/virtio-ports");
  bool found = false;
  for (struct dirent *entry; !found && ports && (entry = readdir(ports));) {
    char path[400], name[32] = "";
    snprintf(path, sizeof path, "/sys/class/virtio-ports/%s/name", entry->d_name);
    int fd = entry->d_name[0] == '.' ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0 && read(fd, name, sizeof name - 1) > 0 && !strncmp(name, "agent", 5)) {
      snprintf(device, size, "/dev/%s", entry->d_name);
      found = true;
    }
    if (fd >= 0) close(fd);
  }
  if (ports) closedir(ports);
  return found;
}

/* Where the machine has no such port the host connects by vsock. */
static int accept_vsock(void) {
  struct {
    unsigned short family, reserved;
    unsigned port, cid;
    unsigned char flags, zero[3];
  } address = {.family = 40 /* AF_VSOCK */, .port = AGENT_PORT, .cid = ~0U};
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

/* Until the host is there a port reads as ended. */
static void read_exactly(void *to, size_t length) {
  for (size_t got = 0; got < length;) {
    ssize_t more = read(control_fd, (char *)to + got, length - got);
    if (more > 0) got += (size_t)more;
    else if (more < 0 && errno != EINTR) reboot(RB_AUTOBOOT);
    else sleep_ms(5);
  }
}

static void write_text(const char *path, const char *text) {
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text)) die("cannot write %s: %s", path, strerror(errno));
  close(fd);
}

static int hex_digit(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; }

static size_t from_hex(const char *text, unsigned char *bytes, size_t room) {
  size_t count = 0;
  for (; count < room && hex_digit(text[0]) >= 0 && hex_digit(text[1]) >= 0; count++, text += 2)
    bytes[count] = (unsigned char)(hex_digit(text[0]) << 4 | hex_digit(text[1]));
  return count;
}

static void reseed(const char *hex) {
  struct {
    struct rand_pool_info head;
    unsigned char bytes[64];
  } seed = {{0}, {0}};
  size_t count = from_hex(hex, seed.bytes, sizeof seed.bytes);
  seed.head.entropy_count = (int)count * 8;
  seed.head.buf_size = (int)count;
  int fd = open("/dev/urandom", O_RDWR | O_CLOEXEC);
  if (count < 32 || fd < 0 || ioctl(fd, RNDADDENTROPY, &seed) || ioctl(fd, RNDRESEEDCRNG)) die("random seed: %s", strerror(errno));
  close(fd);
}

/* Forward alone: what counts on the order of times must not break. */
static void set_clock(const char *text) {
  long long wanted = strtoll(text, NULL, 10);
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if ((long long)now.tv_sec * 1000000000 + now.tv_nsec >= wanted) return;
  struct timespec then = {wanted / 1000000000, wanted % 1000000000};
  if (clock_settime(CLOCK_REALTIME, &then)) die("clock: %s", strerror(errno));
}

/*
 * SECURITY: without bytes of its own a clone is not taken for somebody of its own. That two clones show different random
 * numbers proves nothing: a kernel whose seed is older than a second or so draws on the processor (RDSEED) and on the
 * cycle counter at the next request, and one whose seed is younger repeats what its twin says.
 */
void apply_identity(char *at, size_t length) {
  const char *end = at + length;
  bool seeded = false;
  while (at < end) {
    const char *name = next_field(&at, end), *value = next_field(&at, end);
    if (!strcmp(name, "seed")) reseed(value), seeded = true;
    else if (!strcmp(name, "time")) set_clock(value);
    else if (!strcmp(name, "token")) snprintf(machine.token, sizeof machine.token, "%s", value);
    else if (!strcmp(name, "machine-id")) snprintf(machine.id, sizeof machine.id, "%s\n", value);
    else if (!strcmp(name, "hostname")) sethostname(value, strlen(value));
    else die("identity: unknown field %s", name);
  }
  if (!seeded) die("identity: no randomness of its own");
}

/* Drives are told apart by the name that the host gave them; a hypervisor that passes no names on keeps their order. */
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

static void parse_mounts(char *at, size_t length);
static char disk_device[32], inputs_device[32];

/* A place that is filled: a copy of us unpacks what the host sends, as the sandbox's own user. */
static pid_t unpacker;
static int unpack_pipe = -1;

static void start_unpacking(unsigned number) {
  int pipes[2];
  char path[64];
  if (number >= machine.mount_count || pipe2(pipes, O_CLOEXEC)) die("files: %s", strerror(errno));
  snprintf(path, sizeof path, "/data/%u", number);
  unpacker = fork();
  if (unpacker < 0) die("files: %s", strerror(errno));
  if (unpacker == 0) {
    close(pipes[1]); /* or else it would wait for itself */
    dup2(pipes[0], 0);
    dup2(open("/filled", O_WRONLY | O_CREAT | O_TRUNC, 0600), 2);
    if (setresgid(SANDBOX_UID, SANDBOX_UID, SANDBOX_UID) || setresuid(SANDBOX_UID, SANDBOX_UID, SANDBOX_UID)) _exit(1);
    _exit(run_builtin((char *[]){"unpack", path, NULL}));
  }
  close(pipes[0]);
  unpack_pipe = pipes[1];
}

static void finish_unpacking(void) {
  int status = 0;
  if (unpack_pipe >= 0) close(unpack_pipe);
  unpack_pipe = -1;
  if (unpacker > 0) waitpid(unpacker, &status, 0);
  unpacker = 0;
  if (!status) return;
  char why[200] = "";
  int fd = open("/filled", O_RDONLY | O_CLOEXEC);
  if (fd < 0 || read(fd, why, sizeof why - 1) < 0) why[0] = 0;
  die("the files do not fit: %s", why);
}

static void unpack(unsigned number, const char *bytes, size_t length) {
  if (unpack_pipe < 0) start_unpacking(number);
  while (length > 0) {
    ssize_t sent = write(unpack_pipe, bytes, length);
    if (sent <= 0) return finish_unpacking();
    bytes += sent;
    length -= (size_t)sent;
  }
}

/* Later changes are told from what came with the machine by their time; the clock that stamps them is a coarse one. */
static void record_copy_time(void) {
  struct timespec now, then;
  if (!machine.mount_count) return;
  clock_gettime(CLOCK_REALTIME_COARSE, &then);
  do sleep_ms(1), clock_gettime(CLOCK_REALTIME_COARSE, &now);
  while (now.tv_sec == then.tv_sec && now.tv_nsec == then.tv_nsec);
  machine.files_copied_at = (long long)then.tv_sec * 1000000000 + then.tv_nsec;
}

/* SECURITY: it comes from the host, before anything of a guest exists. */
static void handle_setup_frame(char type, uint32_t id, char *payload, size_t length) {
  switch (type) {
    case FRAME_IDENTITY:
      apply_identity(payload, length);
      machine.has_identity = true;
      return send_frame(FRAME_RENEWED, 0, "", 0);
    case FRAME_CONFIGURE: machine.config = payload, machine.config_length = length; return;
    case FRAME_FILTER: machine.filter = filter_to_memfd(payload, length); return;
    case FRAME_EXPECT: return parse_mounts(payload, length);
    case FRAME_DATA: return unpack(id, payload, length);
    case FRAME_END: return finish_unpacking();
    default: die("configuration: unknown frame %c", type);
  }
}

static void read_setup_frames(void) {
  for (;;) {
    unsigned char header[9];
    read_exactly(header, sizeof header);
    uint32_t id = header[1] | (uint32_t)header[2] << 8 | (uint32_t)header[3] << 16 | (uint32_t)header[4] << 24;
    size_t length = header[5] | (size_t)header[6] << 8 | (size_t)header[7] << 16 | (size_t)header[8] << 24;
    char *payload = length > 1 << 22 ? NULL : malloc(length + 1);
    if (!payload) die("configuration: too long");
    read_exactly(payload, length);
    payload[length] = 0;
    if (header[0] == FRAME_GO) return free(payload);
    handle_setup_frame((char)header[0], id, payload, length);
    if (header[0] == FRAME_DATA) free(payload);
  }
}

/* `disk` · `inputs` · `limit` NAME VALUE · `place` dir|file|image ro|rw TARGET NAME · `file` TARGET TEXT · `user` UID GID */
static void parse_mounts(char *at, size_t length) {
  const char *end = at + length;
  while (at < end) {
    const char *name = next_field(&at, end);
    if (!strcmp(name, "disk")) {
      mount_on(disk_device, "/data", "ext4", MS_NOSUID | MS_NODEV | MS_NOATIME, "noinit_itable");
      if (chmod("/data", 0711)) die("disk: %s", strerror(errno));
    } else if (!strcmp(name, "inputs")) {
      mount_on(inputs_device, "/inputs", "erofs", MS_RDONLY | MS_NOSUID | MS_NODEV, "");
    } else if (!strcmp(name, "user")) machine.uid = next_field(&at, end), machine.gid = next_field(&at, end);
    else if (!strcmp(name, "limit")) {
      strings_add(&machine.limits, next_field(&at, end));
      strings_add(&machine.limits, next_field(&at, end));
    } else if (!strcmp(name, "file")) {
      strings_add(&machine.files, next_field(&at, end));
      strings_add(&machine.files, next_field(&at, end));
    } else if (!strcmp(name, "tmp")) machine.tmp = next_field(&at, end);
    else if (!strcmp(name, "place")) {
      if (machine.mount_count >= MAX_MOUNTS) die("too many mounts");
      struct machine_mount *entry = &machine.mounts[machine.mount_count];
      *entry = (struct machine_mount){.kind = next_field(&at, end), .mode = next_field(&at, end), .target = next_field(&at, end), .name = next_field(&at, end)};
      char path[64];
      snprintf(path, sizeof path, "/data/%zu", machine.mount_count++);
      if (mkdir(path, 0755) || chown(path, SANDBOX_UID, SANDBOX_UID)) die("%s: %s", entry->target, strerror(errno));
    } else die("configuration: unknown field %s", name);
  }
}

static void write_cgroup_limit(const char *name, const char *value) {
  char path[128];
  snprintf(path, sizeof path, "/cgroup/work/%s", name);
  write_text(path, value);
}

/* The agent stands beside the commands: what holds them must not hold it. */
static void create_cgroup(void) {
  write_text("/cgroup/cgroup.subtree_control", "+memory +pids +cpu");
  if (mkdir("/cgroup/work", 0755)) die("control group: %s", strerror(errno));
}

/* In the container, as long as it is root: who it is, and what it holds. */
void receive_setup(void) {
  send_frame(FRAME_WAITING, 0, "", 0);
  read_setup_frames();
  if (!machine.has_identity || !machine.config || machine.filter < 0 || !machine.uid) die("configuration: not complete");
  for (size_t i = 0; i + 1 < machine.limits.count; i += 2) write_cgroup_limit(machine.limits.items[i], machine.limits.items[i + 1]);
  record_copy_time();
}

/* The agent has no rights: what needs some it asks of us, and only the host can make it ask. */
static void serve_helper(int socket) {
  static char text[4096];
  for (ssize_t got; (got = recv(socket, text, sizeof text - 1, 0)) > 0;) {
    text[got] = 0;
    apply_identity(text, (size_t)got);
    if (send(socket, "", 1, MSG_NOSIGNAL) < 0) break;
  }
}

/* The container shared our description of the channel, and waited in another way. */
static void make_channel_blocking(void) { fcntl(control_fd, F_SETFL, fcntl(control_fd, F_GETFL) & ~O_NONBLOCK); }

static int run_container(void) {
  int sockets[2], status = 0;
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets)) die("socketpair: %s", strerror(errno));
  pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS, 0, 0, 0, 0);
  if (child < 0) die("namespaces: %s", strerror(errno));
  if (child == 0) {
    close(sockets[0]);
    machine.helper = sockets[1];
    container_init();
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
  /* Each command moves into its group: without this the kernel would make it wait for a quiet moment. */
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
    /* SECURITY: only the host can send it away, and does so only where nothing of a guest ever ran. */
    if (!WIFEXITED(status) || WEXITSTATUS(status) != EXIT_LEFT) break;
    make_channel_blocking();
  }
  sync();
  reboot(RB_AUTOBOOT);
  for (;;) pause();
}
