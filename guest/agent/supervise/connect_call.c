#include "common/channel.h"
#include "session/users/users.h"
#include "supervise/supervise.h"
#include "supervise/unix_sockets.h"

#include <arpa/inet.h>
#include <grp.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>

/*
 * Two tasks. Connections to a network that the sandbox does not have are reported; this confines nothing, because the
 * network namespace is empty. Connections to Unix sockets that a program of the host bound in a mounted directory are
 * refused; there PID 1 makes every connection itself.
 */
const char *network_guarantee;

static bool read_address(const struct supervised_call *call, uint64_t address, uint64_t length,
                         struct sockaddr_storage *to) {
  if (!address || length < sizeof(sa_family_t)) return false;
  memset(to, 0, sizeof *to);
  return !read_caller_memory(call, address, to, length < sizeof *to ? length : sizeof *to);
}

static bool is_loopback_or_any(const struct in6_addr *six) {
  if (IN6_IS_ADDR_V4MAPPED(six)) return six->s6_addr[12] == 127 || !memcmp(six->s6_addr + 12, "\0\0\0\0", 4);
  return IN6_IS_ADDR_LOOPBACK(six) || IN6_IS_ADDR_UNSPECIFIED(six);
}

/* Returns the error that a connection gets where there is no network, or 0. */
static int check_address(const struct sockaddr_storage *to) {
  char text[INET6_ADDRSTRLEN];
  if (to->ss_family == AF_INET) {
    const struct sockaddr_in *four = (const void *)to;
    uint32_t host = ntohl(four->sin_addr.s_addr);
    if (host >> 24 == 127 || host == 0) return 0;
    report_violation(network_guarantee, "connect %s:%d", inet_ntop(AF_INET, &four->sin_addr, text, sizeof text),
                     ntohs(four->sin_port));
    return -ENETUNREACH;
  }
  if (to->ss_family != AF_INET6) return 0;
  const struct sockaddr_in6 *six = (const void *)to;
  if (is_loopback_or_any(&six->sin6_addr)) return 0;
  report_violation(network_guarantee, "connect [%s]:%d", inet_ntop(AF_INET6, &six->sin6_addr, text, sizeof text),
                   ntohs(six->sin6_port));
  return -ENETUNREACH;
}

int check_connect(const struct supervised_call *call, uint64_t address, uint64_t length) {
  struct sockaddr_storage to;
  return read_address(call, address, length, &to) ? check_address(&to) : 0;
}

/* The worker connects with the caller's user, which the other side of a Unix socket can ask for. */
static void take_user_of(pid_t caller) {
  char name[32], text[1024];
  unsigned uid, gid;
  snprintf(name, sizeof name, "%d/status", caller);
  const char *users = read_text_at(proc_fd, name, text, sizeof text) > 0 ? strstr(text, "\nUid:") : NULL;
  const char *groups = users ? strstr(users, "\nGid:") : NULL;
  bool known = groups && sscanf(users, "\nUid: %*u %u", &uid) == 1 && sscanf(groups, "\nGid: %*u %u", &gid) == 1;
  if (!known || setgroups(0, NULL) || setresgid(gid, gid, gid) || setresuid(uid, uid, uid)) _exit(EXIT_SETUP_FAILED);
}

/* A connection can block; PID 1 must not, so a child connects the caller's socket. */
static int connect_in_child(const struct supervised_call *call, int socket, const void *to, socklen_t length) {
  pid_t worker = fork_blocking_worker(call->caller);
  if (worker < 0) return -errno;
  if (worker > 0) return REPLIED;
  if (has_root_user) take_user_of(call->caller);
  struct seccomp_notif_resp answer = {.id = call->id};
  if (connect(socket, to, length)) answer.error = -errno;
  ioctl(call->listener, SECCOMP_IOCTL_NOTIF_SEND, &answer);
  _exit(0);
}

static int connect_socket(const struct supervised_call *call, int socket, const void *to, socklen_t length) {
  int flags = fcntl(socket, F_GETFL);
  if (flags < 0) return -errno;
  if (!(flags & O_NONBLOCK) || has_root_user) return connect_in_child(call, socket, to, length);
  begin_bounded_calls();
  int result = connect(socket, to, length) ? -errno : 0;
  end_bounded_calls();
  return result;
}

/* Connects to exactly the socket that was checked, whatever its name means by now. */
static int connect_path(const struct supervised_call *call, const struct socket_call *to) {
  struct resolved_path resolved;
  int result = resolve(&resolved, call->caller, AT_FDCWD, to->path, FOLLOW_SYMLINK);
  if (result) return result;
  if (resolved.fd < 0) result = -ENOENT;
  else if (!S_ISSOCK(resolved.stat.st_mode)) result = -ECONNREFUSED;
  else if (!(result = check_socket(&resolved))) {
    struct sockaddr_un checked = {.sun_family = AF_UNIX};
    snprintf(checked.sun_path, sizeof checked.sun_path, "/proc/self/fd/%d", resolved.fd);
    result = connect_socket(call, to->socket, &checked, sizeof checked);
  }
  release_path(&resolved);
  return result;
}

/*
 * SECURITY: no connection continues in the kernel, not even one to another kind of address: another thread could
 * replace the address, or the socket behind the descriptor.
 */
int emulate_connect(const struct supervised_call *call, int fd, uint64_t address, uint64_t length) {
  struct socket_call to;
  int result = read_socket_call(call, fd, address, length, &to);
  if (result) return result;
  if (network_guarantee) result = check_address(&to.address);
  if (!result) result = to.path[0] ? connect_path(call, &to) : connect_socket(call, to.socket, &to.address, to.length);
  close_caller_fd(to.socket);
  return result;
}
