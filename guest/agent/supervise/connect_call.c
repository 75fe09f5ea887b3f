#include "common/channel.h"
#include "supervise/supervise.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/uio.h>

/*
 * Reports connections to a network that the sandbox does not have.
 *
 * SECURITY: this only reports. The empty network namespace confines the program, so a call that continues in the
 * kernel reaches nothing either, even if another thread replaces the address.
 */
const char *network_guarantee;

static bool read_address(const struct supervised_call *call, uint64_t address, uint64_t length,
                         struct sockaddr_storage *to) {
  if (!address || length < sizeof(sa_family_t)) return false;
  memset(to, 0, sizeof *to);
  struct iovec local = {to, length < sizeof *to ? length : sizeof *to};
  struct iovec remote = {(void *)(uintptr_t)address, local.iov_len};
  return process_vm_readv(call->caller, &local, 1, &remote, 1, 0) == (ssize_t)local.iov_len;
}

static bool is_loopback_or_any(const struct in6_addr *six) {
  if (IN6_IS_ADDR_V4MAPPED(six)) return six->s6_addr[12] == 127 || !memcmp(six->s6_addr + 12, "\0\0\0\0", 4);
  return IN6_IS_ADDR_LOOPBACK(six) || IN6_IS_ADDR_UNSPECIFIED(six);
}

/* Returns the error that the call would get anyway, or 0 to let it continue. */
int check_connect(const struct supervised_call *call, uint64_t address, uint64_t length) {
  struct sockaddr_storage to;
  char text[INET6_ADDRSTRLEN];
  if (!read_address(call, address, length, &to)) return 0;
  if (to.ss_family == AF_INET) {
    const struct sockaddr_in *four = (const void *)&to;
    uint32_t host = ntohl(four->sin_addr.s_addr);
    if (host >> 24 == 127 || host == 0) return 0;
    report_violation(network_guarantee, "connect %s:%d", inet_ntop(AF_INET, &four->sin_addr, text, sizeof text),
                     ntohs(four->sin_port));
    return -ENETUNREACH;
  }
  if (to.ss_family != AF_INET6) return 0;
  const struct sockaddr_in6 *six = (const void *)&to;
  if (is_loopback_or_any(&six->sin6_addr)) return 0;
  report_violation(network_guarantee, "connect [%s]:%d", inet_ntop(AF_INET6, &six->sin6_addr, text, sizeof text),
                   ntohs(six->sin6_port));
  return -ENETUNREACH;
}
