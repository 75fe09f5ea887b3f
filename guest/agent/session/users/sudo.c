#include "session/users/sudo.h"
#include "common/channel.h"
#include "common/message.h"
#include "limits/limits.h"
#include "session/process_tree.h"
#include "session/session.h"
#include "session/users/users.h"
#include "supervise/supervise.h"

#include <sys/socket.h>
#include <sys/un.h>

enum { STREAMS = 3, MAX_REQUESTS = 256, MAX_DEPTH = 4096, MAX_WORDS_TEXT = MAX_TEXT - 8 };

/* A request on its way: first the connection of `sudo`, then the socket to the process that waits for the verdict. */
struct sudo_request {
  struct watch watch;
  struct watch listener; /* supervised system calls of what was started */
  struct command *command;
  uint32_t token;
  char words[MAX_WORDS_TEXT]; /* the user and the words of the command, for the host's record */
  size_t words_length;
};

static struct sudo_request requests[MAX_REQUESTS];
/* We are the namespace init of an isolated command: only its processes can connect, and we are their subreaper. */
static bool serves_one_command;
static uint32_t last_token;

static void forget_request(struct sudo_request *request) {
  if (request->watch.fd >= 0) watch_close(&request->watch);
  if (request->listener.fd >= 0) watch_close(&request->listener);
  request->command = NULL;
  request->token = 0;
}

static bool is_free(const struct sudo_request *request) { return !request->token; }

static struct sudo_request *new_request(void) {
  for (size_t i = 0; i < MAX_REQUESTS; i++)
    if (is_free(&requests[i])) {
      requests[i] = (struct sudo_request){.watch = {.fd = -1}, .listener = {.fd = -1}, .token = ++last_token};
      if (!last_token) requests[i].token = ++last_token;
      return &requests[i];
    }
  return NULL;
}

void sudo_forget(const struct command *command) {
  for (size_t i = 0; i < MAX_REQUESTS; i++)
    if (!is_free(&requests[i]) && requests[i].command == command) forget_request(&requests[i]);
}

static void listener_ready(struct watch *watch, uint32_t events) {
  struct sudo_request *request = watch->owner;
  if (!(events & READABLE)) return forget_request(request);
  if (request->command) set_violation_owner(request->command->id, false);
  supervision_handle(watch->fd);
}

static void send_request_to_host(struct sudo_request *request, uint32_t pid) {
  char payload[MAX_TEXT];
  memcpy(payload, &request->token, 4);
  memcpy(payload + 4, &pid, 4);
  memcpy(payload + 8, request->words, request->words_length);
  send_frame(FRAME_SUDO, request->command ? request->command->id : 0, payload, 8 + request->words_length);
}

/* From the process that waits: first its pid, then perhaps the listener of its system calls. */
static void waiting_process_ready(struct watch *watch, uint32_t events) {
  (void)events;
  struct sudo_request *request = watch->owner;
  char kind, text[1024];
  int fd, length = receive_message(watch->fd, &kind, text, sizeof text, &fd);
  if (length < 0) {
    watch_close(watch);
    if (request->listener.fd < 0) forget_request(request);
    return;
  }
  uint32_t pid;
  if (kind == MESSAGE_LISTENER && fd >= 0 && request->listener.fd < 0)
    watch_start(&request->listener, fd, READABLE, listener_ready, request);
  else if (fd >= 0) close(fd);
  if (kind == MESSAGE_PID && length == sizeof pid) memcpy(&pid, text, sizeof pid), send_request_to_host(request, pid);
}

void sudo_handle_verdict(const char *payload, size_t length) {
  uint32_t token;
  if (length != 5) return;
  memcpy(&token, payload, 4);
  for (size_t i = 0; i < MAX_REQUESTS; i++) {
    struct sudo_request *request = &requests[i];
    if (!token || request->token != token || request->watch.fd < 0) continue;
    if (payload[4] == 1) send_message(request->watch.fd, MESSAGE_START, "", 0, -1);
    else forget_request(request);
  }
}

/* The subreaper above a process, found through its ancestors. */
static struct command *command_of(pid_t pid) {
  char name[16];
  for (int depth = 0; depth < MAX_DEPTH && pid > 1; depth++) {
    snprintf(name, sizeof name, "%d", pid);
    pid_t parent = live_parent_of(name);
    if (parent == 1) return command_of_subreaper(pid);
    pid = parent;
  }
  return NULL;
}

static const struct {
  const char *name;
  size_t arity;
} ALLOWED_FIELDS[] = {{"argv", 1}, {"env", 1}, {"as", 1}, {"cwd", 1}, {"terminal", 2}};

static const char *string_at(const char **at, const char *end) {
  const char *text = *at, *nul = memchr(text, 0, (size_t)(end - text));
  if (!nul) return NULL;
  *at = nul + 1;
  return text;
}

static void add_word(struct sudo_request *request, const char *word) {
  size_t length = strlen(word) + 1, room = sizeof request->words - request->words_length;
  if (length > room) length = room;
  if (!length) return;
  memcpy(request->words + request->words_length, word, length);
  request->words_length += length;
  request->words[request->words_length - 1] = 0;
}

/* SECURITY: the request comes from a program in the sandbox. Nothing in here ends the agent. */
static bool read_request(struct sudo_request *request, const char *at, size_t length) {
  const char *end = at + length, *user = NULL, *words[512];
  size_t count = 0;
  while (at < end) {
    const char *name = string_at(&at, end), *value = NULL;
    size_t arity = 0;
    for (size_t i = 0; name && i < LENGTH(ALLOWED_FIELDS); i++)
      if (!strcmp(name, ALLOWED_FIELDS[i].name)) arity = ALLOWED_FIELDS[i].arity;
    if (!arity) return false;
    for (size_t i = 0; i < arity; i++)
      if (at >= end || !(value = string_at(&at, end))) return false;
    if (!strcmp(name, "as")) user = value;
    if (!strcmp(name, "argv") && count < LENGTH(words)) words[count++] = value;
  }
  if (!user || !count) return false;
  add_word(request, user);
  for (size_t i = 0; i < count; i++) add_word(request, words[i]);
  return true;
}

static union {
  struct cmsghdr header;
  char space[CMSG_SPACE((STREAMS + 2) * sizeof(int))];
} control_data;
static char buffer[MAX_SUDO_REQUEST];

/* Receives a message. Returns its length, and how many descriptors came along; -1 when there is none. */
static ssize_t receive(int socket, int *fds, size_t *count, size_t most) {
  struct iovec data = {buffer, sizeof buffer};
  struct msghdr message = {.msg_iov = &data,
                           .msg_iovlen = 1,
                           .msg_control = control_data.space,
                           .msg_controllen = CMSG_SPACE(most * sizeof(int))};
  ssize_t got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  *count = 0;
  if (got < 0) return -1;
  for (struct cmsghdr *header = CMSG_FIRSTHDR(&message); header; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    *count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    memcpy(fds, CMSG_DATA(header), *count * sizeof(int));
  }
  return message.msg_flags & (MSG_TRUNC | MSG_CTRUNC) ? 0 : got;
}

static bool forward(int socket, size_t length, const int *fds, size_t count) {
  struct iovec data = {buffer, length};
  struct msghdr message = {.msg_iov = &data,
                           .msg_iovlen = 1,
                           .msg_control = control_data.space,
                           .msg_controllen = CMSG_SPACE(count * sizeof(int))};
  memset(&control_data, 0, sizeof control_data);
  struct cmsghdr *header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(count * sizeof(int));
  memcpy(CMSG_DATA(header), fds, count * sizeof(int));
  return sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0;
}

enum { FIRST_KEPT_FD = 100 };

/* SECURITY: what else a namespace init has open is none of the monitor's business, and would keep connections open. */
static _Noreturn void become_monitor(size_t length, const int fds[STREAMS + 2]) {
  int kept[STREAMS + 3], count = STREAMS + 2;
  for (int i = 0; i < count; i++) kept[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 2 * FIRST_KEPT_FD);
  if (commands_cgroup >= 0) kept[count++] = fcntl(commands_cgroup, F_DUPFD_CLOEXEC, 2 * FIRST_KEPT_FD);
  for (int i = 0; i < count; i++)
    if (kept[i] < 0 || dup3(kept[i], FIRST_KEPT_FD + i, O_CLOEXEC) < 0) _exit(EXIT_SETUP_FAILED);
  syscall(SYS_close_range, 0, FIRST_KEPT_FD - 1, 0);
  syscall(SYS_close_range, FIRST_KEPT_FD + count, INT_MAX, 0);
  frame_relay = NULL;
  if (commands_cgroup >= 0) commands_cgroup = FIRST_KEPT_FD + STREAMS + 2;
  const int streams[] = {FIRST_KEPT_FD, FIRST_KEPT_FD + 1, FIRST_KEPT_FD + 2};
  sudo_monitor(buffer, length, streams, FIRST_KEPT_FD + STREAMS, FIRST_KEPT_FD + STREAMS + 1);
}

static bool start_monitor(size_t length, const int fds[STREAMS + 2]) {
  pid_t monitor = fork();
  if (monitor == 0) become_monitor(length, fds);
  return monitor > 0;
}

/* Hands the request to the subreaper of the command that asked. */
static bool pass_on(struct sudo_request *request, size_t length, const int streams[STREAMS]) {
  int sockets[2];
  const struct command *command = request->command;
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets)) return false;
  int fds[STREAMS + 2] = {streams[0], streams[1], streams[2], request->watch.fd, sockets[1]};
  bool sent = command ? forward(command->requests, length, fds, LENGTH(fds)) : start_monitor(length, fds);
  close(sockets[1]);
  watch_close(&request->watch);
  if (sent) watch_start(&request->watch, sockets[0], READABLE, waiting_process_ready, request);
  else close(sockets[0]);
  return sent;
}

/* SECURITY: only root and `user` may ask, as processes of a command that the host still knows. */
static bool is_permitted(struct sudo_request *request) {
  struct ucred peer;
  socklen_t size = sizeof peer;
  if (getsockopt(request->watch.fd, SOL_SOCKET, SO_PEERCRED, &peer, &size)) return false;
  if (peer.uid != 0 && peer.uid != USER_UID) return false;
  if (serves_one_command) return peer.pid > 0;
  /* Where Unix sockets are supervised, a worker of ours connected for the process that asks. */
  pid_t caller = caller_of_worker(peer.pid);
  request->command = command_of(caller ? caller : peer.pid);
  return request->command && !request->command->exit_reported && request->command->requests >= 0;
}

static void connection_ready(struct watch *watch, uint32_t events) {
  (void)events;
  struct sudo_request *request = watch->owner;
  int fds[STREAMS + 2];
  size_t count = 0;
  ssize_t length = receive(watch->fd, fds, &count, STREAMS);
  bool whole = length > 0 && count == STREAMS;
  bool started = whole && is_permitted(request) && read_request(request, buffer, (size_t)length) &&
                 pass_on(request, (size_t)length, fds);
  for (size_t i = 0; i < count; i++) close(fds[i]);
  if (!started) forget_request(request);
}

static void accept_request(struct watch *watch, uint32_t events) {
  (void)events;
  int fd = accept4(watch->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
  struct sudo_request *request = fd < 0 ? NULL : new_request();
  if (request) watch_start(&request->watch, fd, READABLE, connection_ready, request);
  else if (fd >= 0) close(fd);
}

void sudo_listen(void) {
  static struct watch listening;
  struct sockaddr_un address = {AF_UNIX, SUDO_SOCKET};
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, MAX_REQUESTS))
    die("cannot listen on %s: %s", SUDO_SOCKET, strerror(errno));
  watch_start(&listening, fd, READABLE, accept_request, NULL);
}

void sudo_listen_for_one(void) {
  serves_one_command = true;
  sudo_listen();
}

/* In the subreaper. */
void sudo_take_request(int socket) {
  int fds[STREAMS + 2];
  size_t count = 0;
  ssize_t length = receive(socket, fds, &count, STREAMS + 2);
  if (length > 0 && count == LENGTH(fds)) {
    pid_t monitor = fork();
    if (monitor == 0) sudo_monitor(buffer, (size_t)length, fds, fds[STREAMS], fds[STREAMS + 1]);
  }
  for (size_t i = 0; i < count; i++) close(fds[i]);
}
