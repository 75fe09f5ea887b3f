/* Unix sockets in directories that the sandbox shares with the host. */
#ifndef RINGFENCE_UNIX_SOCKETS_H
#define RINGFENCE_UNIX_SOCKETS_H

#include "supervise/supervise.h"

#include <sys/socket.h>
#include <sys/un.h>

/* Mounts of the host's files, and sockets of the host that the plan grants; guest paths. */
extern struct strings host_mounts, host_sockets;
/*
 * `bind` is not supervised: the sandbox has only copies of the host's files, and sockets are never copied back. PLATFORM: the filter of
 * some container engines refuses pidfd_getfd, without which PID 1 cannot bind a caller's socket.
 */
extern bool free_bind;

/* Whether connections to Unix sockets have to be checked: programs of the host may listen on sockets in a mount. */
bool supervises_sockets(void);
/* The socket and the address of a supervised call. `path` is empty unless it is a Unix socket and the address a path. */
struct socket_call {
  int socket;
  struct sockaddr_storage address;
  socklen_t length;
  char path[sizeof((struct sockaddr_un *)NULL)->sun_path + 1];
};
/* Copies both from the caller. Returns 0 or -errno; the socket is to be closed after 0. */
int read_socket_call(const struct supervised_call *call, int fd, uint64_t address, uint64_t length,
                     struct socket_call *to);
/* Records a socket that a command has just bound to this path, after the time `before`. */
void remember_socket(const struct resolved_path *resolved, const struct timespec *before);
/* Returns 0, or -errno after reporting a violation. */
int check_socket(const struct resolved_path *resolved);

#endif
