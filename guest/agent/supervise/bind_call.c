#include "limits/limits.h"
#include "supervise/supervise.h"
#include "supervise/unix_sockets.h"

#include <linux/openat2.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>

/* Binding a unix socket to a path creates a directory entry. We bind the caller's own socket for it. */

static int open_caller_directory(pid_t caller) {
  char name[32];
  snprintf(name, sizeof name, "%d/cwd", caller);
  return openat(proc_fd, name, O_PATH | O_DIRECTORY | O_CLOEXEC);
}

/*
 * SECURITY: the kernel resolves the path once more, for us and not for the caller: `/proc/self` is another process then.
 * It has to find the directory that was checked, and without links whose meaning other threads can change.
 */
static bool kernel_finds_parent(int cwd, const char *path, const struct resolved_path *resolved) {
  char directory[sizeof((struct socket_call *)NULL)->path + 1];
  const char *name = strrchr(path, '/');
  if (!name) strcpy(directory, ".");
  else snprintf(directory, sizeof directory, "%.*s", name == path ? 1 : (int)(name - path), path);
  struct open_how how = {.flags = O_PATH | O_DIRECTORY | O_CLOEXEC, .resolve = RESOLVE_NO_MAGICLINKS};
  int fd = (int)syscall(SYS_openat2, cwd, directory, &how, sizeof how);
  struct stat found, checked;
  bool same = fd >= 0 && !fstat(fd, &found) && !fstat(resolved->parent, &checked) && found.st_ino == checked.st_ino &&
              found.st_dev == checked.st_dev;
  if (fd >= 0) close(fd);
  return same;
}

/* Binds from the caller's working directory, so that the socket has the address as the caller wrote it. */
static int bind_at(const struct supervised_call *call, int cwd, const struct socket_call *to) {
  if (fchdir(cwd)) return -1;
  mode_t own = umask(caller_umask(call->caller));
  begin_bounded_calls();
  int failed = bind(to->socket, (const void *)&to->address, to->length);
  end_bounded_calls();
  int error = errno;
  umask(own);
  if (chdir("/")) _exit(EXIT_SETUP_FAILED);
  errno = error;
  return failed;
}

/* The path cannot change its meaning between our check and the bind: every change of a name inside waits for us. */
static int bind_in(const struct supervised_call *call, int cwd, const struct socket_call *to) {
  struct resolved_path resolved;
  struct timespec before;
  int result = to->path[0] == '/'
                   ? resolve(&resolved, call->caller, AT_FDCWD, to->path, NO_FOLLOW)
                   : resolve_from(&resolved, call->caller, fcntl(cwd, F_DUPFD_CLOEXEC, 3), to->path, NO_FOLLOW);
  if (result) return result;
  if (resolved.parent < 0 || resolved.fd >= 0) result = -EADDRINUSE;
  else if (!kernel_finds_parent(cwd, to->path, &resolved)) result = -EACCES;
  else result = check_new_entry(&resolved, denies_move_in);
  clock_gettime(CLOCK_REALTIME_COARSE, &before);
  if (!result) result = call_result(bind_at(call, cwd, to), &resolved, "create");
  if (!result) disk_add_entry(), remember_socket(&resolved, &before);
  release_path(&resolved);
  return result;
}

static int bind_path(const struct supervised_call *call, const struct socket_call *to) {
  int cwd = open_caller_directory(call->caller);
  if (cwd < 0) return -EACCES;
  int result = bind_in(call, cwd, to);
  close(cwd);
  return result;
}

/* An address of another kind; the caller's socket may be of any kind too. */
static int bind_address(const struct socket_call *to) {
  begin_bounded_calls();
  int result = bind(to->socket, (const void *)&to->address, to->length) ? -errno : 0;
  end_bounded_calls();
  return result;
}

int emulate_bind(const struct supervised_call *call, int fd, uint64_t address, uint64_t length) {
  struct socket_call to;
  int result = read_socket_call(call, fd, address, length, &to);
  if (result) return result;
  if (to.path[0]) result = bind_path(call, &to);
  else result = bind_address(&to);
  close_caller_fd(to.socket);
  return result;
}
