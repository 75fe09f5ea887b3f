#include "common/message.h"

#include <sys/socket.h>

static bool transmit(int socket, char kind, const void *text, size_t length, int fd, int flags) {
  char space[CMSG_SPACE(sizeof(int))] = {0};
  struct iovec data[2] = {{&kind, 1}, {(void *)text, length}};
  struct msghdr message = {.msg_iov = data, .msg_iovlen = 2};
  if (fd >= 0) {
    message.msg_control = space;
    message.msg_controllen = sizeof space;
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
  }
  return sendmsg(socket, &message, MSG_NOSIGNAL | flags) >= 0;
}

bool send_message(int socket, char kind, const void *text, size_t length, int fd) {
  return transmit(socket, kind, text, length, fd, 0);
}

bool send_message_now(int socket, char kind, const void *text, size_t length) {
  return transmit(socket, kind, text, length, -1, MSG_DONTWAIT);
}

int receive_message(int socket, char *kind, char *text, size_t size, int *fd) {
  char space[CMSG_SPACE(sizeof(int))] = {0};
  struct iovec data[2] = {{kind, 1}, {text, size - 1}};
  struct msghdr message = {.msg_iov = data, .msg_iovlen = 2, .msg_control = space, .msg_controllen = sizeof space};
  ssize_t got;
  /*
   * A peer that exits with unread messages resets the socket; the messages that it sent can still be read. PLATFORM: Linux reports
   * the reset once and before them, gVisor after them and every time.
   */
  int resets = 0;
  do got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  while (got < 0 && (errno == EINTR || (errno == ECONNRESET && !resets++)));
  *fd = -1;
  if (got < 1) return -1;
  struct cmsghdr *header = CMSG_FIRSTHDR(&message);
  if (header && header->cmsg_type == SCM_RIGHTS) memcpy(fd, CMSG_DATA(header), sizeof *fd);
  text[got - 1] = 0;
  return (int)got - 1;
}
