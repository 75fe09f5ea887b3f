#include "common/common.h"
#include "launch/launch.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/utsname.h>

/* What runs in a Pod besides the sandbox: before it starts, and to find out what the cluster's network lets through. */

static int create_in(int directory, const char *name, mode_t mode) {
  int fd = openat(directory, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);
  if (fd < 0 || fchmod(fd, mode)) die("%s: %s", name, strerror(errno));
  return fd;
}

static void copy_agent(int directory) {
  int from = open("/proc/self/exe", O_RDONLY | O_CLOEXEC), to = create_in(directory, "agent", 0555);
  for (ssize_t sent; (sent = sendfile(to, from, NULL, 1 << 20));)
    if (sent < 0) die("the agent cannot be copied: %s", strerror(errno));
  close(to);
  close(from);
}

static void write_in(int directory, const char *name, const char *text) {
  int fd = create_in(directory, name, 0444);
  if (write(fd, text, strlen(text)) != (ssize_t)strlen(text)) die("%s: %s", name, strerror(errno));
  close(fd);
}

/*
 * A mounted file or directory must exist when the sandbox's container starts. A directory (its name ends in a slash) belongs to the
 * sandbox's user then; the content of a file comes later, into the same inode.
 */
static void create_placeholder(const char *path) {
  if (path[strlen(path) - 1] == '/') {
    if (mkdir(path, 0755)) die("%s: %s", path, strerror(errno));
    return;
  }
  int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0755);
  if (fd < 0) die("%s: %s", path, strerror(errno));
  close(fd);
}

static void read_exactly(char *to, size_t length) {
  for (size_t done = 0; done < length;) {
    ssize_t got = read(0, to + done, length - done);
    if (got <= 0) die("the archive is too short");
    done += (size_t)got;
  }
}

enum { TAR_BLOCK = 512, TAR_SIZE = 124, TAR_KIND = 156 };

int pod_fill_file(const char *path) {
  char block[TAR_BLOCK];
  read_exactly(block, sizeof block);
  if (block[TAR_KIND] != '0') die("the archive does not begin with a file");
  long long left = strtoll(block + TAR_SIZE, NULL, 8);
  int fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) die("%s: %s", path, strerror(errno));
  for (; left > 0; left -= TAR_BLOCK) {
    size_t part = left < TAR_BLOCK ? (size_t)left : TAR_BLOCK;
    read_exactly(block, sizeof block);
    if (write(fd, block, part) != (ssize_t)part) die("%s: %s", path, strerror(errno));
  }
  while (read(0, block, sizeof block) > 0) continue;
  return 0;
}

int pod_install(char **argv) {
  const char *path = argv[0], *passwd = argv[1], *group = argv[2];
  int directory = open(path, O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) die("%s: %s", path, strerror(errno));
  umask(0);
  copy_agent(directory);
  write_in(directory, "passwd", passwd);
  write_in(directory, "group", group);
  for (char **file = argv + 3; *file; file++) create_placeholder(*file);
  return 0;
}

/* Tells the cluster which kernel this is, in the message that it keeps of an ended container. */
int pod_kernel(void) {
  char boot[64] = "";
  struct utsname kernel;
  ssize_t length = read_text_at(AT_FDCWD, "/proc/sys/kernel/random/boot_id", boot, sizeof boot);
  boot[length > 0 ? strcspn(boot, "\n") : 0] = 0;
  int fd = open("/dev/termination-log", O_WRONLY | O_CLOEXEC);
  if (fd < 0 || uname(&kernel) || dprintf(fd, "%s\n%s\n", boot, kernel.version) < 0)
    die("the kernel cannot be named: %s", strerror(errno));
  return 0;
}

enum { REACHED = 0, NOT_REACHED = 3, REACH_PAUSE_US = 250000 };

static bool connects(const char *host, const char *port) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
  struct timeval patience = {.tv_sec = 1};
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0 || inet_pton(AF_INET, host, &address.sin_addr) != 1) die("cannot try %s", host);
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  bool connected = !connect(fd, (struct sockaddr *)&address, sizeof address);
  close(fd);
  return connected;
}

/* Tries the address that every Pod is told: the cluster's own API. */
int pod_reach(int tries) {
  const char *host = getenv("KUBERNETES_SERVICE_HOST"), *port = getenv("KUBERNETES_SERVICE_PORT");
  if (!host || !port) die("no address of the cluster's API");
  for (; tries > 0; tries--) {
    if (connects(host, port)) return REACHED;
    usleep(REACH_PAUSE_US);
  }
  return NOT_REACHED;
}
