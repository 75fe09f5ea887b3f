#include "limits/limits.h"
#include "supervise/supervise.h"
#include "supervise/unix_sockets.h"

#include <sys/socket.h>
#include <sys/un.h>

/* Binding a unix socket to a path creates a directory entry. We bind the caller's own socket for it. */

/* Binds from the caller's working directory, so that the socket has the address as the caller wrote it. */
static int bind_at(const struct supervised_call *call, int socket, const struct sockaddr_un *address,
                   socklen_t length) {
  char name[32];
  snprintf(name, sizeof name, "%d/cwd", call->caller);
  int cwd = openat(proc_fd, name, O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (cwd < 0 || fchdir(cwd)) {
    if (cwd >= 0) close(cwd);
    return -EACCES;
  }
  mode_t own = umask(caller_umask(call->caller));
  int failed = bind(socket, (const void *)address, length), error = errno;
  umask(own);
  close(cwd);
  if (chdir("/")) _exit(EXIT_SETUP_FAILED);
  errno = error;
  return failed;
}

/* The path cannot change its meaning between our check and the bind: every change of a name inside waits for us. */
static int bind_path(const struct supervised_call *call, int socket, const struct sockaddr_un *address,
                     socklen_t length) {
  char path[sizeof address->sun_path + 1] = "";
  struct resolved_path resolved;
  memcpy(path, address->sun_path, length - offsetof(struct sockaddr_un, sun_path));
  int result = resolve(&resolved, call->caller, AT_FDCWD, path, NO_FOLLOW);
  if (result) return result;
  if (resolved.parent < 0 || resolved.fd >= 0) result = -EADDRINUSE;
  else result = check_new_entry(&resolved, denies_move_in);
  if (!result) result = call_result(bind_at(call, socket, address, length), &resolved, "create");
  if (!result) disk_add_entry(), remember_socket(&resolved);
  release_path(&resolved);
  return result;
}

int emulate_bind(const struct supervised_call *call, int fd, uint64_t address, uint64_t length) {
  struct sockaddr_storage to = {0};
  if (length > sizeof to) return -EINVAL;
  int result = length ? read_caller_memory(call, address, &to, (size_t)length) : 0;
  if (result) return result;
  int socket = duplicate_caller_fd(call, fd);
  if (socket < 0) return socket;
  if (!has_socket_path(socket, &to, length)) result = bind(socket, (void *)&to, (socklen_t)length) ? -errno : 0;
  else if (length > sizeof(struct sockaddr_un)) result = -EINVAL;
  else result = bind_path(call, socket, (const void *)&to, (socklen_t)length);
  close(socket);
  return result;
}
