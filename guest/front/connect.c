#include "front.h"

#include <sys/socket.h>
#include <sys/un.h>

/* SECURITY: only this user may enter the directory. Its own name must not be a symbolic link. */
int open_broker_directory_in(const char *state, bool create) {
  int parent = open(state, O_PATH | O_DIRECTORY | O_CLOEXEC);
  struct stat stat;
  if (parent < 0) return -1;
  if (create && (fstat(parent, &stat) || stat.st_uid != geteuid())) {
    close(parent);
    return -1;
  }
  if (create) mkdirat(parent, "broker", 0700);
  int fd = openat(parent, "broker", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  close(parent);
  if (fd >= 0 && !fstat(fd, &stat) && stat.st_uid == geteuid() && !(stat.st_mode & 077)) return fd;
  if (fd >= 0) close(fd);
  return -1;
}

/* As in src/compose/compose.ts; a path that depends on the current directory or on the user database is Node's. */
int open_broker_directory(bool create) {
  const char *home = getenv("RINGFENCE_HOME"), *base = getenv("XDG_STATE_HOME");
  char path[PATH_MAX];
  int length;
  if (home && *home) length = snprintf(path, sizeof path, "%s", home);
  else if (base) length = snprintf(path, sizeof path, "%s/ringfence", base);
  else length = snprintf(path, sizeof path, "%s/.local/state/ringfence", getenv("HOME") ? getenv("HOME") : "");
  if (length <= 0 || (size_t)length >= sizeof path || path[0] != '/') return -1;
  return open_broker_directory_in(path, create);
}

static void limit_waiting(int fd, int ms) {
  struct timeval time = {.tv_sec = ms / 1000, .tv_usec = (ms % 1000) * 1000};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time);
}

void wait_without_limit(int connection) { limit_waiting(connection, 0); }

/*
 * Reading it proves to the broker that the kernel lets this process inspect it. A process below a Landlock domain, in
 * another user namespace or with fewer capabilities cannot open the file, whatever it claims to be.
 */
static bool read_secrets(pid_t listener, struct secrets *secrets) {
  char path[64], text[2 * SECRET_LENGTH + 1];
  snprintf(path, sizeof path, "/proc/%d/fd/%d", listener, SECRET_FD);
  if (read_text_at(AT_FDCWD, path, text, sizeof text) != 2 * SECRET_LENGTH) return false;
  *secrets = (struct secrets){0};
  memcpy(secrets->of_listener, text, SECRET_LENGTH);
  memcpy(secrets->of_caller, text + SECRET_LENGTH, SECRET_LENGTH);
  return true;
}

/*
 * SECURITY: the front starts whatever the broker says, so the listener must be what this process could have started
 * itself. A state directory may lie where a sandbox can write, and a listener there has the same user: it must be
 * an equal process, and it must know the secret of the process that it claims to be, because a pid can be used again.
 */
static bool is_genuine(int connection, struct secrets *secrets) {
  struct ucred peer;
  socklen_t length = sizeof peer;
  char shown[SECRET_LENGTH];
  bool same_cgroup;
  return !getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &length) && peer.uid == geteuid() &&
         is_equal_process(peer.pid, &same_cgroup) && read_secrets(peer.pid, secrets) &&
         read_all(connection, shown, sizeof shown) && !memcmp(shown, secrets->of_listener, sizeof shown);
}

/* PLATFORM: an address holds 107 bytes; the path through /proc is always short. */
int connect_broker(struct secrets *secrets) {
  int directory = open_broker_directory(false);
  if (directory < 0) return -1;
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/socket", directory);
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd >= 0) limit_waiting(fd, ANSWER_WAIT_MS);
  bool is_ours = fd >= 0 && !connect(fd, (struct sockaddr *)&address, sizeof address) && is_genuine(fd, secrets);
  close(directory);
  if (is_ours) return fd;
  if (fd >= 0) close(fd);
  return -1;
}
