#include "front.h"

#include <poll.h>

extern char **environ;

/* A broker that does not answer in time is not asked again: Node starts in a tenth of this. */
enum { ACCEPT_MS = 1000 };

static void add_number(struct buffer *to, unsigned long long number) {
  char text[32];
  snprintf(text, sizeof text, "%llu", number);
  buffer_add_string(to, text);
}

/* Tells one build from another, also at the same path. */
static bool add_identity(struct buffer *to, const char *program) {
  struct stat stat_of;
  char text[128];
  if (stat(program, &stat_of)) return false;
  snprintf(text, sizeof text, "%llu:%llu:%llu:%lld%09ld", (unsigned long long)stat_of.st_dev,
           (unsigned long long)stat_of.st_ino, (unsigned long long)stat_of.st_size, (long long)stat_of.st_mtim.tv_sec,
           stat_of.st_mtim.tv_nsec);
  buffer_add_string(to, text);
  return true;
}

/*
 * Protocol, secret, build, path of Node, which of 0 to 2 is a terminal, current directory; the number of arguments and
 * the arguments; the number of variables and the variables.
 */
static bool add_request(struct buffer *to, const struct invocation *invocation, const char *secret) {
  char cwd[PATH_MAX], terminals[4] = "000";
  if (!getcwd(cwd, sizeof cwd) || cwd[0] != '/') return false;
  for (int fd = 0; fd < 3; fd++)
    if (isatty(fd)) terminals[fd] = '1';
  buffer_add_string(to, PROTOCOL);
  buffer_add_string(to, secret);
  if (!add_identity(to, invocation->program)) return false;
  buffer_add_string(to, invocation->node);
  buffer_add_string(to, terminals);
  buffer_add_string(to, cwd);
  add_number(to, (unsigned long long)invocation->argc - 1);
  for (int i = 1; i < invocation->argc; i++) buffer_add_string(to, invocation->argv[i]);
  unsigned long long count = 0;
  while (environ[count]) count++;
  add_number(to, count);
  for (char **entry = environ; *entry; entry++) buffer_add_string(to, *entry);
  return true;
}

/* Until the broker has accepted, nothing has happened, and Node can do everything. */
bool request_service(int connection, const struct invocation *invocation) {
  char secret[SECRET_LENGTH + 1], type, *payload;
  size_t length;
  struct buffer request = {0};
  if (!read_secret(connection, secret) || !add_request(&request, invocation, secret)) return false;
  bool is_sent = send_front_frame(connection, BROKER_REQUEST, request.bytes, request.length);
  free(request.bytes);
  struct pollfd answer = {.fd = connection, .events = POLLIN};
  if (!is_sent || poll(&answer, 1, ACCEPT_MS) != 1) return false;
  if (!receive_front_frame(connection, &type, &payload, &length)) return false;
  free(payload);
  return type == BROKER_ACCEPTED;
}
