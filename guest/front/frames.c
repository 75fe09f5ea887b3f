#include "front.h"

#include <arpa/inet.h>
#include <poll.h>
#include <stdarg.h>
#include <sys/socket.h>

/* For the code that the front shares with the agent. */
_Noreturn void die(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fputs("ringfence: ", stderr);
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  va_end(arguments);
  _exit(EXIT_FAILED);
}

void buffer_add(struct buffer *buffer, const void *bytes, size_t length) {
  if (buffer->length + length > buffer->room) {
    buffer->room = 2 * (buffer->length + length) + 4096;
    buffer->bytes = realloc(buffer->bytes, buffer->room);
    if (!buffer->bytes) _exit(EXIT_FAILED);
  }
  if (length) memcpy(buffer->bytes + buffer->length, bytes, length);
  buffer->length += length;
}

void buffer_add_string(struct buffer *buffer, const char *text) { buffer_add(buffer, text, strlen(text) + 1); }

const char *take_string(char **at, const char *end) {
  if (*at >= end) return NULL;
  const char *text = *at;
  *at += strnlen(*at, (size_t)(end - *at)) + 1;
  return text;
}

/* A caller's stream may be non-blocking. */
static bool wait_for(int fd, short events) {
  struct pollfd one = {.fd = fd, .events = events};
  return poll(&one, 1, -1) > 0 || errno == EINTR;
}

bool write_all(int fd, const void *bytes, size_t length) {
  for (size_t done = 0; done < length;) {
    ssize_t written = write(fd, (const char *)bytes + done, length - done);
    if (written >= 0) done += (size_t)written;
    else if (errno == EAGAIN) wait_for(fd, POLLOUT);
    else if (errno != EINTR) return false;
  }
  return true;
}

/* Without SIGPIPE: a broker that closes the connection leaves the work to Node. */
static bool send_all(int fd, const void *bytes, size_t length) {
  for (size_t done = 0; done < length;) {
    ssize_t sent = send(fd, (const char *)bytes + done, length - done, MSG_NOSIGNAL);
    if (sent >= 0) done += (size_t)sent;
    else if (errno != EINTR) return false;
  }
  return true;
}

bool send_front_frame(int fd, enum front_frame type, const void *payload, size_t length) {
  char head[5] = {(char)type};
  uint32_t size = htonl((uint32_t)length);
  memcpy(head + 1, &size, sizeof size);
  return send_all(fd, head, sizeof head) && send_all(fd, payload, length);
}

bool send_front_number(int fd, enum front_frame type, uint32_t number) {
  number = htonl(number);
  return send_front_frame(fd, type, &number, sizeof number);
}

bool read_all(int fd, void *to, size_t length) {
  for (size_t done = 0; done < length;) {
    ssize_t got = read(fd, (char *)to + done, length - done);
    if (got > 0) done += (size_t)got;
    else if (got == 0 || errno != EINTR) return false;
  }
  return true;
}

bool receive_front_frame(int fd, char *type, char **payload, size_t *length) {
  char head[5];
  uint32_t size;
  if (!read_all(fd, head, sizeof head)) return false;
  memcpy(&size, head + 1, sizeof size);
  size = ntohl(size);
  if (size > MAX_BROKER_FRAME || !(*payload = malloc((size_t)size + 1))) return false;
  (*payload)[size] = 0;
  *type = head[0];
  *length = size;
  if (read_all(fd, *payload, size)) return true;
  free(*payload);
  return false;
}
