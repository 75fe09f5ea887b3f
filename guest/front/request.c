#include "front.h"

#include <poll.h>

extern char **environ;

static void add_number(struct buffer *to, unsigned long long number) {
  char text[32];
  snprintf(text, sizeof text, "%llu", number);
  buffer_add_string(to, text);
}

/* With the time of the last change of the inode: package managers set the other one, and inode numbers are used again. */
bool build_of(const char *program, char text[BUILD_LENGTH]) {
  struct stat at;
  if (stat(program, &at)) return false;
  snprintf(text, BUILD_LENGTH, "%llu:%llu:%llu:%lld%09ld:%lld%09ld", (unsigned long long)at.st_dev,
           (unsigned long long)at.st_ino, (unsigned long long)at.st_size, (long long)at.st_mtim.tv_sec,
           at.st_mtim.tv_nsec, (long long)at.st_ctim.tv_sec, at.st_ctim.tv_nsec);
  return true;
}

/*
 * Protocol, secret, build, path of Node, which of 0 to 2 is a terminal, current directory; the number of arguments and
 * the arguments; the number of variables and the variables.
 */
static bool add_request(struct buffer *to, const struct invocation *invocation, const char *secret) {
  char cwd[PATH_MAX], terminals[4] = "000", build[BUILD_LENGTH];
  if (!getcwd(cwd, sizeof cwd) || cwd[0] != '/' || !build_of(invocation->program, build)) return false;
  for (int fd = 0; fd < 3; fd++)
    if (isatty(fd)) terminals[fd] = '1';
  buffer_add_string(to, PROTOCOL);
  buffer_add_string(to, secret);
  buffer_add_string(to, build);
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
bool request_service(int connection, const struct secrets *secrets, const struct invocation *invocation) {
  char type, *payload;
  size_t length;
  struct buffer request = {0};
  if (!add_request(&request, invocation, secrets->of_caller)) return false;
  bool is_sent = send_front_frame(connection, BROKER_REQUEST, request.bytes, request.length);
  free(request.bytes);
  struct pollfd answer = {.fd = connection, .events = POLLIN};
  if (!is_sent || poll(&answer, 1, ANSWER_WAIT_MS) != 1) return false;
  if (!receive_front_frame(connection, &type, &payload, &length)) return false;
  free(payload);
  wait_without_limit(connection);
  return type == BROKER_ACCEPTED;
}
