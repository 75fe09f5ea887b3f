#include "front.h"

extern char **environ;

/* Node looks these up itself; a broker that was started without them would behave differently. */
static bool changes_node(const char *entry) {
  static const char *const HARMLESS[] = {"NODE_ENV=", "NODE_EXTRA_CA_CERTS="}; /* what is served uses no TLS */
  for (size_t i = 0; i < LENGTH(HARMLESS); i++)
    if (!strncmp(entry, HARMLESS[i], strlen(HARMLESS[i]))) return false;
  return !strncmp(entry, "NODE_", 5) || !strncmp(entry, "LD_", 3) || !strncmp(entry, "UV_", 3) ||
         !strncmp(entry, "OPENSSL_", 8);
}

static bool has_argument(const struct invocation *invocation, const char *word) {
  for (int i = 1; i < invocation->argc; i++)
    if (!strcmp(invocation->argv[i], word)) return true;
  return false;
}

static enum command command_of(int argc, char **argv) {
  for (int i = 1; i < argc; i++) {
    if (!strcmp(argv[i], "--json") || !strcmp(argv[i], "--quiet")) continue;
    if (!strcmp(argv[i], "run")) return COMMAND_RUN;
    if (!strcmp(argv[i], "check")) return COMMAND_CHECK;
    if (!strcmp(argv[i], "hook")) return COMMAND_HOOK;
    return COMMAND_OTHER;
  }
  return COMMAND_OTHER;
}

/* Words that may also be a value or a part of the command to run; Node then does what the broker could have done. */
static bool is_for_node(const struct invocation *invocation) {
  if (has_argument(invocation, "--no-broker")) return true;
  switch (invocation->command) {
    /* At a terminal the command gets one of its own, and questions are asked there. */
    case COMMAND_RUN: return isatty(0);
    case COMMAND_CHECK: return has_argument(invocation, "--batch") || has_argument(invocation, "url");
    case COMMAND_HOOK: return has_argument(invocation, "install") || has_argument(invocation, "test");
    default: return true;
  }
}

bool may_use_broker(const struct invocation *invocation) {
  const char *wanted = getenv("RINGFENCE_BROKER");
  if ((wanted && !strcmp(wanted, "0")) || is_for_node(invocation)) return false;
  if (getuid() != geteuid() || getgid() != getegid()) return false;
  for (int fd = 0; fd < 3; fd++)
    if (fcntl(fd, F_GETFD) < 0) return false;
  for (char **entry = environ; *entry; entry++)
    if (changes_node(*entry)) return false;
  return invocation->node[0] && invocation->script[0];
}

/* As `#!/usr/bin/env node` finds it; the settings of an agent name it, because agents may start hooks without a PATH. */
static void find_node(char node[PATH_MAX]) {
  const char *named = getenv("RINGFENCE_NODE");
  if (named && *named == '/') {
    if (!realpath(named, node)) node[0] = 0;
    return;
  }
  const char *path = getenv("PATH");
  for (const char *at = path; at && *at;) {
    size_t length = strcspn(at, ":");
    char candidate[PATH_MAX];
    /* An empty or relative entry depends on the directory: leave it to exec. */
    if (length == 0 || *at != '/' || length + sizeof "/node" > sizeof candidate) return;
    memcpy(candidate, at, length);
    strcpy(candidate + length, "/node");
    struct stat stat_of;
    if (!access(candidate, X_OK) && !stat(candidate, &stat_of) && S_ISREG(stat_of.st_mode)) {
      if (!realpath(candidate, node)) node[0] = 0;
      return;
    }
    at += length + (at[length] == ':');
  }
}

/* The front lies in dist/guest, the program in dist/cli. */
static void find_script(struct invocation *invocation) {
  char self[PATH_MAX];
  ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
  if (length <= 0) return;
  self[length] = 0;
  for (int level = 0; level < 2; level++) {
    char *slash = strrchr(self, '/');
    if (!slash) return;
    *slash = 0;
  }
  if (strlen(self) + sizeof "/cli/ringfence.cjs" > sizeof invocation->script) return;
  strcat(strcpy(invocation->script, self), "/cli/ringfence.cjs");
  strcat(strcpy(invocation->program, self), "/cli/main.cjs");
}

_Noreturn void become_node(const struct invocation *invocation) {
  char **argv = calloc((size_t)invocation->argc + 2, sizeof *argv);
  if (argv) {
    argv[0] = "node";
    argv[1] = (char *)invocation->script;
    for (int i = 1; i < invocation->argc; i++) argv[i + 1] = invocation->argv[i];
    const char *named = getenv("RINGFENCE_NODE");
    execvp(named && *named == '/' ? named : "node", argv);
  }
  bool is_hook = invocation->command == COMMAND_HOOK;
  fprintf(stderr, "ringfence: cannot start node: %s%s\n", strerror(errno), is_hook ? "; this call is blocked" : "");
  /* SECURITY: an agent takes 127 of a hook for "no objection". */
  _exit(is_hook ? EXIT_BLOCKED : 127);
}

int main(int argc, char **argv) {
  if (argc == 2 && !strcmp(argv[0], LISTENER_NAME)) listener_main(argv[1]);
  static struct invocation invocation;
  invocation.argc = argc;
  invocation.argv = argv;
  invocation.command = command_of(argc, argv);
  find_script(&invocation);
  find_node(invocation.node);
  if (may_use_broker(&invocation)) {
    struct secrets secrets;
    int connection = connect_broker(&secrets);
    if (connection < 0) start_broker(&invocation);
    else if (request_service(connection, &secrets, &invocation)) serve_request(connection, &invocation);
    else close(connection);
  }
  become_node(&invocation);
}
