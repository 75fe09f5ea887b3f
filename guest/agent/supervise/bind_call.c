#include "limits/limits.h"
#include "supervise/supervise.h"
#include "supervise/unix_sockets.h"

#include <sys/socket.h>
#include <sys/un.h>

/* Binding a unix socket to a path creates a directory entry. We bind the caller's own socket for it. */

/* Binds from the caller's working directory, so that the socket has the address as the caller wrote it. */
static int bind_at(const struct supervised_call *call, const struct socket_call *to) {
  char name[32];
  snprintf(name, sizeof name, "%d/cwd", call->caller);
  int cwd = openat(proc_fd, name, O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (cwd < 0 || fchdir(cwd)) {
    if (cwd >= 0) close(cwd);
    return -EACCES;
  }
  mode_t own = umask(caller_umask(call->caller));
  int failed = bind(to->socket, (const void *)&to->address, to->length), error = errno;
  umask(own);
  close(cwd);
  if (chdir("/")) _exit(EXIT_SETUP_FAILED);
  errno = error;
  return failed;
}

/* The path cannot change its meaning between our check and the bind: every change of a name inside waits for us. */
static int bind_path(const struct supervised_call *call, const struct socket_call *to) {
  struct resolved_path resolved;
  int result = resolve(&resolved, call->caller, AT_FDCWD, to->path, NO_FOLLOW);
  if (result) return result;
  if (resolved.parent < 0 || resolved.fd >= 0) result = -EADDRINUSE;
  else result = check_new_entry(&resolved, denies_move_in);
  if (!result) result = call_result(bind_at(call, to), &resolved, "create");
  if (!result) disk_add_entry(), remember_socket(&resolved);
  release_path(&resolved);
  return result;
}

int emulate_bind(const struct supervised_call *call, int fd, uint64_t address, uint64_t length) {
  struct socket_call to;
  int result = read_socket_call(call, fd, address, length, &to);
  if (result) return result;
  if (to.path[0]) result = bind_path(call, &to);
  else result = bind(to.socket, (void *)&to.address, to.length) ? -errno : 0;
  close(to.socket);
  return result;
}
