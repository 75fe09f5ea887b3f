#include "common/message.h"
#include "front.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>

/*
 * The broker's listening socket, in a process of its own because Node can neither ask who connects nor receive
 * descriptors from anyone but a child. Hands over connections of equal processes and closes all others.
 */
enum { NODE_FD = 3, BACKLOG = 256, LOOK_MS = 5000 };

_Noreturn static void stop(int code) { _exit(code); }

static struct secrets secrets;

static void make_secret(char secret[SECRET_LENGTH + 1]) {
  unsigned char random[SECRET_LENGTH / 2];
  if (getrandom(random, sizeof random, 0) != sizeof random) stop(1);
  for (size_t i = 0; i < sizeof random; i++) snprintf(secret + 2 * i, 3, "%02x", random[i]);
}

/* Only a process that may inspect this one can open /proc/PID/fd/60. */
static void publish_secrets(void) {
  make_secret(secrets.of_listener);
  make_secret(secrets.of_caller);
  int fd = memfd_create("ringfence-broker", MFD_CLOEXEC);
  if (fd < 0 || !write_all(fd, secrets.of_listener, SECRET_LENGTH) ||
      !write_all(fd, secrets.of_caller, SECRET_LENGTH) || dup3(fd, SECRET_FD, O_CLOEXEC) < 0)
    stop(1);
  close(fd);
}

/* INVARIANT: the caller holds the lock, so a socket that is there belongs to a broker that has ended. */
static int listen_in(int directory) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/socket.new", directory);
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  unlinkat(directory, "socket.new", 0);
  mode_t before = umask(0177);
  if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, BACKLOG) ||
      renameat(directory, "socket.new", directory, "socket"))
    stop(1);
  umask(before);
  return fd;
}

/* Node's own format for descriptors from a child; the first byte is the message's kind. */
static bool hand_over(int connection, bool same_cgroup) {
  char text[160];
  int length =
      snprintf(text, sizeof text, "\"cmd\":\"NODE_HANDLE\",\"type\":\"net.Socket\",\"msg\":{\"sameCgroup\":%s}}\n",
               same_cgroup ? "true" : "false");
  return send_message(NODE_FD, '{', text, (size_t)length, connection);
}

/* SECURITY: another user, or a process that sees or may do anything else than the broker, is not served. */
static void accept_one(int listening) {
  struct ucred peer;
  socklen_t length = sizeof peer;
  bool same_cgroup = false;
  int fd = accept4(listening, NULL, NULL, SOCK_CLOEXEC);
  if (fd < 0) return;
  if (!getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) && peer.uid == geteuid() && peer.gid == getegid() &&
      is_equal_process(peer.pid, &same_cgroup) &&
      send(fd, secrets.of_listener, SECRET_LENGTH, MSG_NOSIGNAL | MSG_DONTWAIT) == SECRET_LENGTH)
    hand_over(fd, same_cgroup);
  close(fd);
}

static ino_t own_inode;

/* Whether callers find our socket: its directory may have been removed, or another broker may have taken the place. */
static bool is_in_place(int directory) {
  struct stat stat;
  return !fstatat(directory, "socket", &stat, AT_SYMLINK_NOFOLLOW) && stat.st_ino == own_inode;
}

static bool has_more(int listening) {
  struct pollfd one = {.fd = listening, .events = POLLIN};
  return poll(&one, 1, 0) > 0;
}

/* Node acknowledges every connection; any other message, or its end, means: stop. */
static bool is_told_to_stop(void) {
  static char text[65536];
  ssize_t got = read(NODE_FD, text, sizeof text - 1);
  if (got < 0 && errno == EINTR) return false;
  text[got > 0 ? got : 0] = 0;
  return got <= 0 || strstr(text, "\"stop\"");
}

_Noreturn void listener_main(const char *state) {
  char text[SECRET_LENGTH + 32];
  if (prctl(PR_SET_PDEATHSIG, SIGKILL)) stop(1);
  int directory = open_broker_directory_in(state, true);
  if (directory < 0) stop(1);
  publish_secrets();
  int listening = listen_in(directory);
  struct stat stat;
  if (fstatat(directory, "socket", &stat, AT_SYMLINK_NOFOLLOW)) stop(1);
  own_inode = stat.st_ino;
  int length = snprintf(text, sizeof text, "\"secret\":\"%s\"}\n", secrets.of_caller);
  if (!send_message(NODE_FD, '{', text, (size_t)length, -1)) stop(1);
  for (;;) {
    struct pollfd polled[] = {{.fd = listening, .events = POLLIN}, {.fd = NODE_FD, .events = POLLIN}};
    if (poll(polled, LENGTH(polled), LOOK_MS) < 0 && errno != EINTR) stop(1);
    if (!is_in_place(directory)) break;
    if (polled[1].revents && is_told_to_stop()) break;
    if (polled[0].revents) accept_one(listening);
  }
  /* Nobody can connect any more; who has connected is still served. */
  if (is_in_place(directory)) unlinkat(directory, "socket", 0);
  while (has_more(listening)) accept_one(listening);
  stop(0);
}
