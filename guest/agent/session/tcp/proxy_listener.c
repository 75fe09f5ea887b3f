#include "common/message.h"
#include "session/tcp/streams.h"

#include <linux/rtnetlink.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

int listen_on_loopback(int port) {
  struct sockaddr_in address = {.sin_family = AF_INET,
                                .sin_port = htons((uint16_t)port),
                                .sin_addr = {htonl(INADDR_LOOPBACK)}};
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), on = 1;
  if (fd < 0) die("proxy: %s", strerror(errno));
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  /* A client of a proxy speaks first: accept the connection together with its first bytes, which saves one wake-up. */
  setsockopt(fd, IPPROTO_TCP, TCP_DEFER_ACCEPT, &on, sizeof on);
  if (bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 1024)) die("proxy: %s", strerror(errno));
  return fd;
}

/*
 * Whether the host received the descriptor. When it has too many open files it gets the message without it, and says
 * so.
 */
static bool is_acknowledged(int by) {
  char answer[256];
  size_t got = 0;
  while (got < sizeof answer - 1 && !memchr(answer, '\n', got)) {
    ssize_t more = read(by, answer + got, sizeof answer - 1 - got);
    if (more < 0 && errno == EINTR) continue;
    if (more <= 0) return false;
    got += (size_t)more;
  }
  answer[got] = 0;
  return strstr(answer, "NODE_HANDLE_ACK");
}

/*
 * Uses Node's own format for descriptors from a child. SECURITY: no command has run yet, and the descriptor is closed
 * before one does.
 */
void stream_pass_listener(int port, int to) {
  static const char NODE_MESSAGE[] = "\"cmd\":\"NODE_HANDLE\",\"type\":\"net.Native\",\"msg\":\"proxy\"}\n";
  int fd = listen_on_loopback(port);
  if (!send_message(to, '{', NODE_MESSAGE, sizeof NODE_MESSAGE - 1, fd)) die("proxy: %s", strerror(errno));
  if (!is_acknowledged(to)) die("proxy: the host did not accept the socket; it may have too many open files");
  close(fd);
  close(to);
}

/* PLATFORM: IFLA_GSO_IPV4_MAX_SIZE and IFLA_GRO_IPV4_MAX_SIZE, since Linux 6.3 and missing in older headers. */
#define GSO_IPV4_MAX_SIZE 63
#define GRO_IPV4_MAX_SIZE 64
#define LOOPBACK_INDEX 1
#define MAX_SEGMENT_BYTES (8 * 65535)

/* Bulk data through the proxy then needs fewer passes through the network stack. Failures are ignored. */
void stream_raise_loopback_gso(void) {
  struct attribute {
    struct rtattr head;
    uint32_t value;
  };
  struct {
    struct nlmsghdr head;
    struct ifinfomsg link;
    struct attribute sent, received;
  } request = {
      .head = {.nlmsg_len = sizeof request, .nlmsg_type = RTM_NEWLINK, .nlmsg_flags = NLM_F_REQUEST},
      .link = {.ifi_index = LOOPBACK_INDEX},
      .sent = {{sizeof(struct attribute), GSO_IPV4_MAX_SIZE}, MAX_SEGMENT_BYTES},
      .received = {{sizeof(struct attribute), GRO_IPV4_MAX_SIZE}, MAX_SEGMENT_BYTES},
  };
  int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
  if (fd < 0) return;
  send(fd, &request, sizeof request, 0);
  close(fd);
}
