#include "limits/limits.h"

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
 */

static int diag_socket = -1, sockstat_file = -1;

void socket_usage_setup(void) {
  diag_socket = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
  if (diag_socket < 0 && limits.socket_bytes) die("cannot count the buffers of sockets: %s", strerror(errno));
  sockstat_file = open("/proc/self/net/sockstat", O_RDONLY | O_CLOEXEC);
}

/* The sockets of one kind, and the bytes in their buffers. */
struct sockets {
  uint64_t count, bytes;
};

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

/* Sums the answers to one request; `head` is the size of the struct before the attributes. */
static struct sockets sum_answers(size_t head, int wanted) {
  static char buffer[65536] __attribute__((aligned(8)));
  struct sockets total = {0};
  for (;;) {
    ssize_t got = recv(diag_socket, buffer, sizeof buffer, 0);
    if (got <= 0) return total;
    int left = (int)got;
    for (const struct nlmsghdr *message = (const void *)buffer; NLMSG_OK(message, left);
         message = NLMSG_NEXT(message, left)) {
      if (message->nlmsg_type == NLMSG_DONE || message->nlmsg_type == NLMSG_ERROR) return total;
      int length = (int)message->nlmsg_len - (int)NLMSG_SPACE(head);
      total.count++;
      if (length > 0)
        total.bytes +=
            sum_buffers((const void *)((const char *)NLMSG_DATA(message) + NLMSG_ALIGN(head)), length, wanted);
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

static struct sockets unix_usage(void) {
  struct unix_diag_req request = {.sdiag_family = AF_UNIX, .udiag_states = ~0U, .udiag_show = UDIAG_SHOW_MEMINFO};
  if (!send_request(&request, sizeof request)) return (struct sockets){0};
  return sum_answers(sizeof(struct unix_diag_msg), UNIX_DIAG_MEMINFO);
}

static uint64_t inet_usage(unsigned char family, unsigned char protocol) {
  struct inet_diag_req_v2 request = {.sdiag_family = family,
                                     .sdiag_protocol = protocol,
                                     .idiag_ext = 1 << (INET_DIAG_SKMEMINFO - 1),
                                     .idiag_states = ~0U};
  if (!send_request(&request, sizeof request)) return 0;
  return sum_answers(sizeof(struct inet_diag_msg), INET_DIAG_SKMEMINFO).bytes;
}

/*
 * Whether the namespace has no other sockets than the listed ones and ours. The kernel counts a socket from its creation
 * until its memory is released, also while it is not in any list.
 */
static bool has_only_listed_sockets(uint64_t listed) {
  char text[64];
  unsigned long used;
  ssize_t got = sockstat_file < 0 ? -1 : pread(sockstat_file, text, sizeof text - 1, 0);
  if (got <= 0) return false;
  text[got] = 0;
  return sscanf(text, "sockets: used %lu", &used) == 1 && used <= listed + 1;
}

/*
 * To list the sockets of TCP, the kernel goes through the table of all connections of the host, which takes a
 * millisecond; most commands have none. SECURITY: the two counts are not taken at the same moment. So they are compared
 * only when there are few sockets, and every third measurement lists all.
 */
enum { FEW_SOCKETS = 64, LIST_ALL_EVERY = 3 };

uint64_t socket_usage(void) {
  static unsigned measurement;
  if (diag_socket < 0) return 0;
  struct sockets unix_sockets = unix_usage();
  uint64_t total = unix_sockets.bytes;
  bool is_short = ++measurement % LIST_ALL_EVERY && unix_sockets.count <= FEW_SOCKETS;
  if (is_short && has_only_listed_sockets(unix_sockets.count)) return total;
  for (int i = 0; i < 2; i++)
    total += inet_usage(i ? AF_INET6 : AF_INET, IPPROTO_TCP) + inet_usage(i ? AF_INET6 : AF_INET, IPPROTO_UDP);
  return total;
}
