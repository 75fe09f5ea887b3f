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

/* PLATFORM: an address holds 107 bytes; the path through /proc is always short. */
int connect_broker(void) {
  int directory = open_broker_directory(false);
  if (directory < 0) return -1;
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/socket", directory);
  struct ucred peer;
  socklen_t length = sizeof peer;
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  bool is_ours = fd >= 0 && !connect(fd, (struct sockaddr *)&address, sizeof address) &&
                 !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) && peer.uid == geteuid();
  close(directory);
  if (is_ours) return fd;
  if (fd >= 0) close(fd);
  return -1;
}

/*
 * SECURITY: proves to the broker that the kernel lets this process inspect it. A process below a Landlock domain, in
 * another user namespace or with fewer capabilities cannot open the file, whatever it claims to be.
 */
bool read_secret(int connection, char secret[SECRET_LENGTH + 1]) {
  struct ucred peer;
  socklen_t length = sizeof peer;
  char path[64];
  if (getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &length)) return false;
  snprintf(path, sizeof path, "/proc/%d/fd/%d", peer.pid, SECRET_FD);
  return read_text_at(AT_FDCWD, path, secret, SECRET_LENGTH + 1) == SECRET_LENGTH;
}
