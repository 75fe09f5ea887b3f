#include "common/channel.h"
#include "common/message.h"
#include "init/config.h"
#include "init/confine.h"
#include "init/init.h"
#include "isolate/isolate.h"
#include "session/users/users.h"
#include "supervise/resolve.h"

#include <grp.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>

/*
 * PID 1 of a container: an engine has created the namespaces and the mounts. The channel is the container's standard
 * input and output; in a Pod it is a Unix socket of the container beside it (guest/channel).
 *
 *   host ─ configure · filter · expect · go ─▶ check the mounts, drop privileges, confine, serve
 */

static struct {
  char *config;
  size_t config_length;
  char *expected;
  size_t expected_length;
  int filter;
} received = {.filter = -1};

int filter_to_memfd(const char *bytes, size_t length) {
  int fd = memfd_create("filter", MFD_CLOEXEC);
  if (fd < 0 || write(fd, bytes, length) != (ssize_t)length || lseek(fd, 0, SEEK_SET))
    die("seccomp filter: %s", strerror(errno));
  return fd;
}

/* Reads frames until FRAME_GO. SECURITY: they come from the host, before any command exists. */
static void read_setup_frames(void) {
  for (;;) {
    struct frame_header header;
    char *payload = read_setup_frame(&header, channel_read_blocking);
    switch (header.type) {
      case FRAME_CONFIGURE: received.config = payload, received.config_length = header.length; break;
      case FRAME_EXPECT: received.expected = payload, received.expected_length = header.length; break;
      case FRAME_FILTER: received.filter = filter_to_memfd(payload, header.length), free(payload); break;
      case FRAME_GO: return free(payload);
      default: die("configuration: unknown frame %c", header.type);
    }
  }
}

static const struct field FIELDS[] = {EXPECTED_MOUNTS(FIELD_ROW)};

static int receive_descriptor(int socket, char wanted) {
  char kind, text[16];
  int fd;
  if (receive_message(socket, &kind, text, sizeof text, &fd) < 0 || kind != wanted || fd < 0)
    die("no root was handed over");
  return fd;
}

/*
 * Enters the root that launch/container_root.c assembled. We started as the host's user 0 without capabilities; as the owner of
 * the user namespace we may enter it, and become its root user. The lock stays open: it holds our range of ids.
 */
static void adopt_root(const char *path) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
  int peer = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (peer < 0 || connect(peer, (struct sockaddr *)&address, sizeof address)) die("%s: %s", path, strerror(errno));
  int users = receive_descriptor(peer, MESSAGE_USERS), mounts = receive_descriptor(peer, MESSAGE_MOUNTS);
  receive_descriptor(peer, MESSAGE_RANGE);
  if (setns(users, CLONE_NEWUSER) || setgroups(0, NULL) || setresgid(0, 0, 0) || setresuid(0, 0, 0) ||
      setns(mounts, CLONE_NEWNS) || chdir("/"))
    die("cannot enter the root: %s", strerror(errno));
  if (mkdir("/run/ringfence", 0755) || mkdir("/run/lock", 01777)) die("/run: %s", strerror(errno));
  close(users);
  close(mounts);
  close(peer);
}

/* Returns what follows the root's field in the list of expected mounts. */
static char *adopt_wanted_root(char *at, const char *end) {
  const char *arguments[MAX_ARITY];
  if (at == end || strcmp(at, "root")) return at;
  read_arguments(FIELDS, LENGTH(FIELDS), next_string(&at, end), &at, end, arguments);
  adopt_root(arguments[0]);
  has_root_user = true;
  return at;
}

/*
 * SECURITY: an engine mounts by path. Each mount point must show the inode that the policy checked (`is`), and each
 * masked path must show another one (`not`).
 */
static void check_mounts(char *at, const char *end) {
  const char *arguments[MAX_ARITY];
  while (at < end) {
    const char *kind = next_string(&at, end);
    read_arguments(FIELDS, LENGTH(FIELDS), kind, &at, end, arguments);
    if (!strcmp(kind, "root")) die("configuration: the root comes first");
    const char *path = arguments[0];
    struct stat stat;
    int fd = open_no_symlinks(AT_FDCWD, path, O_PATH);
    if (fd < 0 || fstat(fd, &stat)) die("cannot open %s: %s", path, strerror(errno));
    bool same = stat.st_dev == strtoull(arguments[1], NULL, 10) && stat.st_ino == strtoull(arguments[2], NULL, 10);
    if (same != !strcmp(kind, "is")) die("%s was replaced after the policy checked it", path);
    close(fd);
  }
}

enum { MAP_TRIES = 10000, MAP_PAUSE_US = 1000 };

/* PLATFORM: Linux lets only somebody with a capability outside map id 0, so the host does it. */
static void wait_for_map(void) {
  char map[64];
  for (int tries = 0; read_text_at(AT_FDCWD, "/proc/self/uid_map", map, sizeof map) <= 0; tries++) {
    if (tries == MAP_TRIES) die("user namespace: the host did not map its user");
    usleep(MAP_PAUSE_US);
  }
}

/* Enters a user namespace in which our ids stay what they are. */
static void enter_own_users(const struct isolated_user *user) {
  char map[64];
  if (unshare(CLONE_NEWUSER)) die("user namespace: %s", strerror(errno));
  int length = snprintf(map, sizeof map, "%u %u 1", user->uid, user->uid);
  int fd = open("/proc/self/uid_map", O_WRONLY | O_CLOEXEC);
  bool mapped = fd >= 0 && write(fd, map, (size_t)length) == length;
  int error = errno;
  if (fd >= 0) close(fd);
  if (!mapped && !user->uid) return wait_for_map();
  if (!mapped) die("user namespace: %s", strerror(error));
  /* PLATFORM: gVisor has no such file. */
  if (!access("/proc/self/setgroups", F_OK)) write_text("/proc/self/setgroups", "deny");
  snprintf(map, sizeof map, "%u %u 1", user->gid, user->gid);
  write_text("/proc/self/gid_map", map);
}

/*
 * Isolated commands need mounts, and a container has no capability. A user namespace gives them to us, over mounts of
 * our own and nothing of the host; commands get none of them. What the engine would hide in /proc, it shows to us: the
 * kernel lets nobody mount another /proc beside one that others have covered.
 */
static void prepare_isolation(void) {
  bool on_linux = prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_IS_SET, CAP_CHOWN, 0, 0) >= 0;
  struct isolated_user user = {.uid = getuid(), .gid = getgid(), .on_linux = on_linux};
  if (!has_root_user) {
    enter_own_users(&user);
    if (unshare(CLONE_NEWNS)) die("mounts: %s", strerror(errno));
    user.first_id = user.uid;
  }
  if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL)) die("mounts: %s", strerror(errno));
  limit_user_namespaces(false);
  cover_kernel_files();
  resolve_setup(); /* in our own mounts */
  landlock_set_scope();
  isolator_start(received.filter, user);
}

static void replace_standard_streams(void) {
  int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  if (nothing < 0) _exit(EXIT_SETUP_FAILED);
  for (int fd = 0; fd < 3; fd++) dup2(nothing, fd);
  if (nothing > 2) close(nothing);
}

/* Moves the channel to high descriptors and replaces standard input, output and error by /dev/null. */
static void move_channel(void) {
  control_fd = fcntl(0, F_DUPFD_CLOEXEC, 100);
  control_out = fcntl(1, F_DUPFD_CLOEXEC, 100);
  if (control_fd < 0 || control_out < 0) _exit(EXIT_SETUP_FAILED);
  replace_standard_streams();
}

enum { CONNECT_TRIES = 3000, CONNECT_PAUSE_US = 20000 };

/* The container beside us creates the socket, and takes one connection only. */
static void connect_channel(const char *path) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int tries = 0;
  while (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address)) {
    if (++tries == CONNECT_TRIES) die("%s: %s", path, strerror(errno));
    usleep(CONNECT_PAUSE_US);
  }
  control_fd = fcntl(fd, F_DUPFD_CLOEXEC, 100);
  if (control_fd < 0) _exit(EXIT_SETUP_FAILED);
  close(fd);
  replace_standard_streams();
}

extern char **environ;

/* PLATFORM: in gVisor every process of our user can read our initial environment, so it is erased. */
static void clear_environment(void) {
  for (char **entry = environ; *entry; entry++) memset(*entry, 0, strlen(*entry));
  *environ = NULL;
}

_Noreturn static void serve_configured(void) {
  /* Tells the host that the container is up. A container in the warm pool waits here for its configuration. */
  send_frame(FRAME_WAITING, 0, "", 0);
  read_setup_frames();
  /* SECURITY: we kill every unknown process in our PID namespace. In a shared one those would be the host's. */
  if (getpid() != 1) die("the container has no PID namespace of its own");
  if (!received.config || received.filter < 0) die("configuration: incomplete");
  umask(0);
  char *expected = received.expected, *end = expected + received.expected_length;
  expected = adopt_wanted_root(expected, end);
  resolve_setup();
  check_mounts(expected, end);
  parse_config(received.config, received.config_length);
  if (options.isolate) prepare_isolation();
  /* The engine has dropped them already; this does not rely on it. */
  if (has_root_user) keep_root_capabilities();
  else drop_privileges(false);
  serve_in_container(received.filter);
}

_Noreturn void container_main(void) {
  clear_environment();
  move_channel();
  serve_configured();
}

_Noreturn void serve_pod(void) {
  on_host_gone = pod_start_again;
  serve_configured();
}

_Noreturn void pod_main(const char *path) {
  clear_environment();
  connect_channel(path);
  serve_pod();
}
