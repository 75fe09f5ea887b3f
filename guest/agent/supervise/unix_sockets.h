/* Unix sockets in directories that the sandbox shares with the host. */
#ifndef RINGFENCE_UNIX_SOCKETS_H
#define RINGFENCE_UNIX_SOCKETS_H

#include "supervise/resolve.h"

#include <sys/socket.h>

/* Mounts of the host's files, and sockets of the host that the plan grants; guest paths. */
extern struct strings host_mounts, host_sockets;

/* Whether connections to Unix sockets have to be checked: programs of the host may listen on sockets in a mount. */
bool supervises_sockets(void);
/* Whether the socket is a Unix socket and the address a path. */
bool has_socket_path(int socket, const struct sockaddr_storage *address, uint64_t length);
/* Records a socket that a command has just bound to this path. */
void remember_socket(const struct resolved_path *resolved);
/* Returns 0, or -errno after reporting a violation. */
int check_socket(const struct resolved_path *resolved);

#endif
