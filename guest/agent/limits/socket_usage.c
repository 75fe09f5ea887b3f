#include "limits/limits.h"

#include <inttypes.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <netinet/in.h>
#include <sys/socket.h>

/*
 * Socket buffers are kernel memory that /proc shows for no process. The kernel lists every socket of a network
 * namespace with its buffers (NETLINK_SOCK_DIAG), also sockets that are only queued in another socket.
 *
 * SECURITY: a cgroup does not count all of them: a TCP connection counts from its accept, which need never come, and the
 * answers that wait in netlink sockets do not count at all.
 */

static int diag_socket = -1, netlink_file = -1;
static int inet_counts[2] = {-1, -1}; /* of IPv4 and IPv6 */

/*
 * To list the sockets of TCP, the kernel goes through the table of all connections of the host, which takes a
 * millisecond; most commands have none. So few sockets are not listed: two of an IP version, which can be the proxy's
 * listener and one more, and four in all where a cgroup counts most of them. SECURITY: only if the host lets no socket
 * have large buffers; else none, and of all sockets only the one with which we ask.
 */
enum { SMALL_BUFFERS = 16 << 20 };
static uint64_t few_inet = 0, few_in_all = 1;

static uint64_t largest_buffer(int probe, int option) {
  int size = INT_MAX;
  socklen_t length = sizeof size;
  setsockopt(probe, SOL_SOCKET, option, &size, sizeof size);
  return getsockopt(probe, SOL_SOCKET, option, &size, &length) ? UINT32_MAX : (uint64_t)size;
}

static bool buffers_are_small(void) {
  int probe = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (probe < 0) return false;
  uint64_t largest = largest_buffer(probe, SO_RCVBUF) + largest_buffer(probe, SO_SNDBUF);
  close(probe);
  return largest <= SMALL_BUFFERS;
}

void socket_usage_setup(void) {
  if (buffers_are_small()) few_inet = 2, few_in_all = 4;
  diag_socket = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
  netlink_file = open("/proc/self/net/netlink", O_RDONLY | O_CLOEXEC);
  inet_counts[0] = open("/proc/self/net/sockstat", O_RDONLY | O_CLOEXEC);
  inet_counts[1] = open("/proc/self/net/sockstat6", O_RDONLY | O_CLOEXEC);
  if ((diag_socket < 0 || netlink_file < 0) && limits.socket_bytes)
    die("cannot count the buffers of sockets: %s", strerror(errno));
}

static uint64_t sum_buffers(const struct rtattr *attribute, int length, int wanted) {
  uint64_t total = 0;
  for (; RTA_OK(attribute, length); attribute = RTA_NEXT(attribute, length)) {
    const uint32_t *values = RTA_DATA(attribute);
    if (attribute->rta_type != wanted || RTA_PAYLOAD(attribute) < 4 * (SK_MEMINFO_WMEM_QUEUED + 1)) continue;
    total += (uint64_t)values[SK_MEMINFO_RMEM_ALLOC] + values[SK_MEMINFO_WMEM_ALLOC];
    total += values[SK_MEMINFO_WMEM_QUEUED];
  }
  return total;
}

/*
 * What is asked for: the answers have a struct of `head` bytes before their attributes. To a request for a list that it
 * does not have, the kernel tries to start a program that loads it, so it is asked once.
 */
struct socket_list {
  size_t head;
  int attribute;
  bool missing;
};

static bool is_missing(const struct nlmsghdr *message) {
  const struct nlmsgerr *answer = NLMSG_DATA(message);
  return message->nlmsg_type == NLMSG_ERROR && answer->error == -ENOENT;
}

static uint64_t sum_answers(struct socket_list *list) {
  static char buffer[65536] __attribute__((aligned(8)));
  uint64_t total = 0;
  for (;;) {
    ssize_t got = recv(diag_socket, buffer, sizeof buffer, 0);
    if (got <= 0) return total;
    int left = (int)got;
    for (const struct nlmsghdr *message = (const void *)buffer; NLMSG_OK(message, left);
         message = NLMSG_NEXT(message, left)) {
      list->missing = is_missing(message);
      if (message->nlmsg_type == NLMSG_DONE || message->nlmsg_type == NLMSG_ERROR) return total;
      int length = (int)message->nlmsg_len - (int)NLMSG_SPACE(list->head);
      const char *attributes = (const char *)NLMSG_DATA(message) + NLMSG_ALIGN(list->head);
      if (length > 0) total += sum_buffers((const void *)attributes, length, list->attribute);
    }
  }
}

static bool send_request(const void *request, size_t length) {
  static char buffer[256] __attribute__((aligned(8)));
  struct nlmsghdr *message = (void *)buffer;
  *message = (struct nlmsghdr){.nlmsg_len = (unsigned)NLMSG_LENGTH(length),
                               .nlmsg_type = SOCK_DIAG_BY_FAMILY,
                               .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP};
  memcpy(NLMSG_DATA(message), request, length);
  return send(diag_socket, message, message->nlmsg_len, 0) == (ssize_t)message->nlmsg_len;
}

static uint64_t unix_usage(void) {
  static struct socket_list list = {sizeof(struct unix_diag_msg), UNIX_DIAG_MEMINFO, false};
  struct unix_diag_req request = {.sdiag_family = AF_UNIX, .udiag_states = ~0U, .udiag_show = UDIAG_SHOW_MEMINFO};
  return !list.missing && send_request(&request, sizeof request) ? sum_answers(&list) : 0;
}

static uint64_t inet_usage(unsigned char family, unsigned char protocol) {
  static struct socket_list lists[] = {{sizeof(struct inet_diag_msg), INET_DIAG_SKMEMINFO, false},
                                       {sizeof(struct inet_diag_msg), INET_DIAG_SKMEMINFO, false}};
  struct socket_list *list = &lists[protocol == IPPROTO_UDP];
  struct inet_diag_req_v2 request = {.sdiag_family = family,
                                     .sdiag_protocol = protocol,
                                     .idiag_ext = 1 << (INET_DIAG_SKMEMINFO - 1),
                                     .idiag_states = ~0U};
  return !list->missing && send_request(&request, sizeof request) ? sum_answers(list) : 0;
}

/* Sums the two columns of buffers in the table of netlink sockets. */
static uint64_t netlink_usage(void) {
  char text[4096 + 1];
  uint64_t total = 0, received, sent;
  size_t kept = 0;
  if (netlink_file < 0 || lseek(netlink_file, 0, SEEK_SET)) return 0;
  for (ssize_t got; (got = read(netlink_file, text + kept, sizeof text - 1 - kept)) > 0;) {
    char *line = text;
    text[kept += (size_t)got] = 0;
    for (char *end; (end = strchr(line, '\n')); line = end + 1)
      if (sscanf(line, "%*s %*d %*u %*x %" SCNu64 " %" SCNu64, &received, &sent) == 2) total += received + sent;
    kept = strlen(line);
    memmove(text, line, kept);
  }
  return total;
}

/* How many sockets of TCP and UDP the kernel's lists have; UINT64_MAX when that is unknown. */
static uint64_t inet_sockets(int family) {
  char text[512];
  uint64_t tcp, udp;
  /* a kernel without IPv6 has no such file */
  if (family && inet_counts[family] < 0) return 0;
  ssize_t got = pread(inet_counts[family], text, sizeof text - 1, 0);
  if (got <= 0) return UINT64_MAX;
  text[got] = 0;
  const char *first = strstr(text, "TCP"), *second = strstr(text, "\nUDP");
  bool known = first && second && sscanf(first, "TCP%*[6:] inuse %" SCNu64, &tcp) == 1 &&
               sscanf(second, "\nUDP%*[6:] inuse %" SCNu64, &udp) == 1;
  return known ? tcp + udp : UINT64_MAX;
}

/* How many sockets the namespace has, of every kind and in every state. */
static uint64_t all_sockets(void) {
  char text[64];
  uint64_t used;
  ssize_t got = pread(inet_counts[0], text, sizeof text - 1, 0);
  if (got <= 0) return UINT64_MAX;
  text[got] = 0;
  return sscanf(text, "sockets: used %" SCNu64, &used) == 1 ? used : UINT64_MAX;
}

/* What a socket without data costs, with its file. A cgroup counts that. */
enum { SOCKET_SIZE = 2560 };

uint64_t socket_usage(void) {
  uint64_t sockets = diag_socket < 0 ? 0 : all_sockets();
  if (diag_socket < 0 || (!count_shared_memory && sockets <= few_in_all)) return 0;
  uint64_t total = unix_usage() + netlink_usage();
  if (count_shared_memory && sockets != UINT64_MAX) total += sockets * SOCKET_SIZE;
  for (int i = 0; i < 2; i++) {
    if (inet_sockets(i) <= few_inet) continue;
    unsigned char family = i ? AF_INET6 : AF_INET;
    total += inet_usage(family, IPPROTO_TCP) + inet_usage(family, IPPROTO_UDP);
  }
  return total;
}
