#include "supervise/unix_sockets.h"
#include "common/channel.h"
#include "supervise/protected_paths.h"

#include <linux/stat.h>

struct strings host_mounts, host_sockets;
bool free_bind;

bool supervises_sockets(void) { return host_mounts.count > 0; }

static bool is_unix_socket(int socket) {
  int domain = 0;
  socklen_t size = sizeof domain;
  return !getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &domain, &size) && domain == AF_UNIX;
}

int read_socket_call(const struct supervised_call *call, int fd, uint64_t address, uint64_t length,
                     struct socket_call *to) {
  memset(to, 0, sizeof *to);
  if (length > sizeof to->address) return -EINVAL;
  int error = length ? read_caller_memory(call, address, &to->address, (size_t)length) : 0;
  if (error) return error;
  to->length = (socklen_t)length;
  to->socket = duplicate_caller_fd(call, fd);
  if (to->socket < 0) return to->socket;
  const struct sockaddr_un *named = (const void *)&to->address;
  size_t start = offsetof(struct sockaddr_un, sun_path);
  if (to->address.ss_family != AF_UNIX || length <= start || !named->sun_path[0] || !is_unix_socket(to->socket))
    return 0;
  if (length > sizeof *named) return close_caller_fd(to->socket), -EINVAL;
  memcpy(to->path, named->sun_path, length - start);
  return 0;
}

/*
 * Sockets that commands of this sandbox have bound. The time of creation tells a socket from a later one of the host
 * that got the same inode number. The oldest is forgotten first; connections to it are then refused.
 */
enum { MAX_SOCKETS = 1024 };
struct bound_socket {
  uint64_t inode;
  uint32_t device_major, device_minor;
  struct statx_timestamp created;
};
static struct bound_socket bound[MAX_SOCKETS];
static size_t bound_count;

static bool identify(int dirfd, const char *name, struct bound_socket *socket) {
  struct statx found;
  if (syscall(SYS_statx, dirfd, name, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW, STATX_INO | STATX_TYPE | STATX_BTIME,
              &found) ||
      !S_ISSOCK(found.stx_mode))
    return false;
  memset(socket, 0, sizeof *socket);
  socket->inode = found.stx_ino;
  socket->device_major = found.stx_dev_major;
  socket->device_minor = found.stx_dev_minor;
  if (found.stx_mask & STATX_BTIME) {
    socket->created.tv_sec = found.stx_btime.tv_sec;
    socket->created.tv_nsec = found.stx_btime.tv_nsec;
  }
  return true;
}

/* Whether a socket was created at or after a time; file systems round to as much as a second. */
static bool is_younger(const struct bound_socket *socket, const struct timespec *than) {
  int64_t rounding = socket->created.tv_nsec ? 1000000 : 1000000000;
  int64_t seconds = socket->created.tv_sec - (int64_t)than->tv_sec;
  if (seconds < -2 || seconds > 2) return seconds > 0;
  return seconds * 1000000000 + (int64_t)socket->created.tv_nsec - than->tv_nsec >= -rounding;
}

/*
 * SECURITY: another sandbox in the same directory can have replaced the name by a socket of the host meanwhile; but that
 * socket is older. One without a time of creation is not recorded.
 */
void remember_socket(const struct resolved_path *resolved, const struct timespec *before) {
  /* SECURITY: where changes of names are not supervised, the name may already be another socket. */
  if (protection.mounts.count == 0) return;
  struct bound_socket *slot = &bound[bound_count % MAX_SOCKETS], found;
  if (!identify(resolved->parent, resolved->name, &found) || !found.created.tv_sec || !is_younger(&found, before))
    return;
  *slot = found;
  bound_count++;
}

static bool is_remembered(int fd) {
  struct bound_socket socket;
  if (!identify(fd, "", &socket)) return false;
  for (size_t i = 0; i < MAX_SOCKETS && i < bound_count; i++)
    if (!memcmp(&bound[i], &socket, sizeof socket)) return true;
  return false;
}

/* The length of the longest path in the list that contains this one, or -1. */
static int longest_match(const struct strings *list, const char *path) {
  int longest = -1;
  for (size_t i = 0; i < list->count; i++) {
    int length = (int)strlen(list->items[i]);
    bool within = !strncmp(path, list->items[i], (size_t)length) && (path[length] == '/' || !path[length]);
    if (within && length > longest) longest = length;
  }
  return longest;
}

int check_socket(const struct resolved_path *resolved) {
  char path[PATH_MAX];
  bool known = fd_path(resolved->fd, path, sizeof path);
  if (known && longest_match(&host_mounts, path) <= longest_match(&protection.private_mounts, path)) return 0;
  for (size_t i = 0; known && i < host_sockets.count; i++)
    if (!strcmp(path, host_sockets.items[i])) return 0;
  if (is_remembered(resolved->fd)) return 0;
  /* SECURITY: a socket whose path cannot be told may be one of the host. */
  report_violation("ipc.private", "connect %s", known ? path : "a socket whose path cannot be checked");
  return -EACCES;
}
