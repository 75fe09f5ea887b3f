#include "agent.h"

#include <stdarg.h>
#include <sys/socket.h>

int control_fd = -1;

static void send_all(const void *data, size_t length) {
  const char *at = data;
  while (length > 0) {
    ssize_t sent = send(control_fd, at, length, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return; /* the host is gone; the control loop sees the end of file and ends the sandbox */
    at += sent;
    length -= (size_t)sent;
  }
}

void report(enum frame_type type, const void *payload, size_t length) {
  if (control_fd < 0) return;
  char frame[5 + 4096];
  if (length > 4096) length = 4096;
  frame[0] = (char)type;
  for (int i = 0; i < 4; i++) frame[1 + i] = (char)(length >> (8 * i));
  memcpy(frame + 5, payload, length);
  send_all(frame, 5 + length);
}

/* More than this a second says nothing new and would let a guest flood the host. */
enum { VIOLATIONS_REPORTED = 256 };

void report_violation(const char *guarantee, const char *format, ...) {
  static int reported;
  if (reported++ >= VIOLATIONS_REPORTED) return;
  char text[2048];
  size_t used = strlen(guarantee) + 1;
  memcpy(text, guarantee, used);
  va_list arguments;
  va_start(arguments, format);
  int more = vsnprintf(text + used, sizeof text - used, format, arguments);
  va_end(arguments);
  size_t length = used + (more < 0 ? 0 : (size_t)more);
  report(FRAME_VIOLATION, text, length < sizeof text ? length : sizeof text - 1);
}

_Noreturn void die(const char *format, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (control_fd >= 0) report(FRAME_ERROR, text, strlen(text));
  else dprintf(2, "ringfence: launch-failed: %s\n", text);
  _exit(125);
}
