#include "common/channel.h"
#include "limits/limits.h"
#include "session/session.h"
#include "session/subreaper.h"

#include <sys/socket.h>

/*
 * Where forking is slow, the next subreaper is forked in advance. It is confined like the others, has no descriptor
 * except its socket, and serves exactly one command.
 *
 * SECURITY: it is in the same position as any subreaper. A process that kills or stops it only delays or breaks the
 * next command of its own sandbox.
 */

enum { STREAMS = 3, MAX_REQUEST = 32 * 1024 };

static struct {
  pid_t subreaper;
  int socket;
} prefork = {0, -1};

pid_t prefork_pid(void) { return prefork.subreaper; }

struct assignment {
  uint32_t agent_processes; /* of commands that run at the same time */
  char request[MAX_REQUEST];
};

static union {
  struct cmsghdr header;
  char space[CMSG_SPACE(STREAMS * sizeof(int))];
} control_data;

static struct msghdr message_of(struct iovec *data) {
  return (struct msghdr){.msg_iov = data,
                         .msg_iovlen = 1,
                         .msg_control = control_data.space,
                         .msg_controllen = sizeof control_data.space};
}

/* Descriptors 0, 1 and 2 are closed, so the received ones get these numbers. */
static void receive_streams(struct msghdr *message, struct stdio_pipes *pipes) {
  struct cmsghdr *header = CMSG_FIRSTHDR(message);
  int streams[STREAMS];
  if (!header || header->cmsg_type != SCM_RIGHTS || header->cmsg_len != CMSG_LEN(sizeof streams))
    _exit(EXIT_SETUP_FAILED);
  memcpy(streams, CMSG_DATA(header), sizeof streams);
  for (int i = 0; i < STREAMS; i++)
    if (streams[i] != i) _exit(EXIT_SETUP_FAILED);
  pipes->in[0] = 0, pipes->out[1] = 1, pipes->errors[1] = 2;
}

static _Noreturn void wait_for_command(int socket) {
  static struct assignment assignment;
  struct command_spec spec;
  struct stdio_pipes pipes = {{-1, -1}, {-1, -1}, {-1, -1}, {-1, socket}, {-1, -1}};
  struct iovec data = {&assignment, sizeof assignment};
  struct msghdr message = message_of(&data);
  control_fd = control_out = -1;
  child_socket = socket;
  close_all_except(socket);
  ssize_t got;
  do got = recvmsg(socket, &message, 0);
  while (got < 0 && errno == EINTR);
  if (got <= (ssize_t)offsetof(struct assignment, request)) _exit(EXIT_SETUP_FAILED);
  receive_streams(&message, &pipes);
  set_agent_processes(assignment.agent_processes);
  const char *problem = parse_command(&spec, assignment.request, (size_t)got - offsetof(struct assignment, request));
  if (problem) die("%s", problem);
  run_as_subreaper(&spec, &pipes, true);
}

void prefork_create(void) {
  int sockets[2];
  if (prefork.subreaper > 0 || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets)) return;
  pid_t subreaper = fork();
  if (subreaper == 0) wait_for_command(sockets[1]);
  close(sockets[1]);
  if (subreaper < 0) close(sockets[0]); /* then the next command forks its own */
  else prefork.subreaper = subreaper, prefork.socket = sockets[0];
}

static void forget_child(void) {
  prefork.subreaper = 0;
  prefork.socket = -1;
}

void prefork_exited(pid_t pid) {
  if (pid != prefork.subreaper) return;
  close(prefork.socket);
  forget_child();
}

pid_t prefork_assign(struct stdio_pipes *pipes, const char *request, size_t length) {
  if (prefork.subreaper <= 0 || length > MAX_REQUEST) return 0;
  static struct assignment assignment;
  assignment.agent_processes = (uint32_t)agent_processes();
  memcpy(assignment.request, request, length);
  struct iovec data = {&assignment, offsetof(struct assignment, request) + length};
  struct msghdr message = message_of(&data);
  struct cmsghdr *header = CMSG_FIRSTHDR(&message);
  int streams[STREAMS] = {pipes->in[0], pipes->out[1], pipes->errors[1]};
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof streams);
  memcpy(CMSG_DATA(header), streams, sizeof streams);
  if (sendmsg(prefork.socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) return 0;
  pid_t subreaper = prefork.subreaper;
  pipes->messages[0] = prefork.socket;
  forget_child();
  return subreaper;
}
