#include "agent.h"

#include <sys/socket.h>

/*
 * Where it takes long to make a process, the next keeper is made while nobody waits: a copy of us behind the same fences,
 * without any descriptor but its socket, until it gets one command and its streams. It serves that one and no other.
 *
 * SECURITY: it stands where any keeper stands. Who ends it or holds it up in the sandbox harms the next command there.
 */

enum { STREAMS = 3, MOST = 32 * 1024 };

static struct {
  pid_t keeper;
  int socket;
} spare = {0, -1};

pid_t spare_keeper(void) { return spare.keeper; }

struct order {
  uint32_t keepers; /* of commands that run beside it */
  char asked[MOST];
};

static union {
  struct cmsghdr header;
  char space[CMSG_SPACE(STREAMS * sizeof(int))];
} carried;

static struct msghdr message_of(struct iovec *data) {
  return (struct msghdr){.msg_iov = data, .msg_iovlen = 1, .msg_control = carried.space, .msg_controllen = sizeof carried.space};
}

/* They come in below our socket, where nothing is open: as 0, 1 and 2. */
static void take_streams(struct msghdr *message, struct ends *ends) {
  struct cmsghdr *header = CMSG_FIRSTHDR(message);
  int streams[STREAMS];
  if (!header || header->cmsg_type != SCM_RIGHTS || header->cmsg_len != CMSG_LEN(sizeof streams)) _exit(125);
  memcpy(streams, CMSG_DATA(header), sizeof streams);
  for (int i = 0; i < STREAMS; i++)
    if (streams[i] != i) _exit(125);
  ends->in[0] = 0, ends->out[1] = 1, ends->errors[1] = 2;
}

static _Noreturn void wait_for_command(int socket) {
  static struct order order;
  struct command_spec spec;
  struct ends ends = {{-1, -1}, {-1, -1}, {-1, -1}, {-1, socket}};
  struct iovec data = {&order, sizeof order};
  struct msghdr message = message_of(&data);
  control_fd = control_out = -1;
  child_socket = socket;
  close_all_but(socket);
  ssize_t got;
  do got = recvmsg(socket, &message, 0);
  while (got < 0 && errno == EINTR);
  if (got <= (ssize_t)offsetof(struct order, asked)) _exit(125);
  take_streams(&message, &ends);
  keepers_are(order.keepers);
  const char *problem = read_command(&spec, order.asked, (size_t)got - offsetof(struct order, asked));
  if (problem) die("%s", problem);
  become_keeper(&spec, &ends, true);
}

void spare_make(void) {
  int sockets[2];
  if (spare.keeper > 0 || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets)) return;
  pid_t keeper = fork();
  if (keeper == 0) wait_for_command(sockets[1]);
  close(sockets[1]);
  if (keeper < 0) close(sockets[0]); /* then the next command makes its own */
  else spare.keeper = keeper, spare.socket = sockets[0];
}

static void let_go(void) {
  spare.keeper = 0;
  spare.socket = -1;
}

void spare_ended(pid_t pid) {
  if (pid != spare.keeper) return;
  close(spare.socket);
  let_go();
}

pid_t spare_take(struct ends *ends, const char *asked, size_t length) {
  if (spare.keeper <= 0 || length > MOST) return 0;
  static struct order order;
  order.keepers = (uint32_t)keepers();
  memcpy(order.asked, asked, length);
  struct iovec data = {&order, offsetof(struct order, asked) + length};
  struct msghdr message = message_of(&data);
  struct cmsghdr *header = CMSG_FIRSTHDR(&message);
  int streams[STREAMS] = {ends->in[0], ends->out[1], ends->errors[1]};
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof streams);
  memcpy(CMSG_DATA(header), streams, sizeof streams);
  if (sendmsg(spare.socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) return 0;
  pid_t keeper = spare.keeper;
  ends->messages[0] = spare.socket;
  let_go();
  return keeper;
}
