#include "sudo/sudo.h"
#include "session/users/sudo.h"
#include "session/users/users.h"

#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

/* What a command of another user inherits, besides the sandbox's own variables. */
static const char *const KEPT[] = {"TERM", "COLORTERM", "LANG", "LANGUAGE", "LC_", "TZ", "DISPLAY", "XAUTHORITY"};

extern char **environ;

static struct {
  char bytes[MAX_SUDO_REQUEST];
  size_t length;
} request;

static int fail(const char *what) {
  fprintf(stderr, "sudo: %s\n", what);
  return 1;
}

static bool add(const char *text) {
  size_t length = strlen(text) + 1;
  if (request.length + length > sizeof request.bytes) return false;
  memcpy(request.bytes + request.length, text, length);
  request.length += length;
  return true;
}

static bool add_field(const char *name, const char *value) { return add(name) && add(value); }

static bool add_variable(const char *name, const char *value) {
  char entry[1024];
  snprintf(entry, sizeof entry, "%s=%s", name, value);
  return add_field("env", entry);
}

static bool is_kept(const char *entry) {
  for (size_t i = 0; i < LENGTH(KEPT); i++)
    if (!strncmp(entry, KEPT[i], strlen(KEPT[i]))) return true;
  return false;
}

static bool is_users_own(const char *entry) {
  static const char *const OWN[] = {"HOME=", "USER=", "LOGNAME=", "SHELL=", "MAIL=", "PWD=", "OLDPWD="};
  for (size_t i = 0; i < LENGTH(OWN); i++)
    if (!strncmp(entry, OWN[i], strlen(OWN[i]))) return true;
  return false;
}

static bool add_environment(const struct sudo_options *options, const struct user *to) {
  struct user from;
  char number[32];
  bool fits = true;
  for (char **entry = environ; *entry; entry++)
    if (is_kept(*entry) || (options->keep_environment && !is_users_own(*entry))) fits &= add_field("env", *entry);
  snprintf(number, sizeof number, "%u", getuid());
  bool known = find_user(number, &from);
  fits &= add_variable("SUDO_USER", known ? from.name : number) && add_variable("SUDO_UID", number);
  snprintf(number, sizeof number, "%u", getgid());
  fits &= add_variable("SUDO_GID", number);
  fits &= add_variable("HOME", to->home) && add_variable("SHELL", to->shell);
  fits &= add_variable("USER", to->name) && add_variable("LOGNAME", to->name);
  for (size_t i = 0; i < options->variables.count; i++) fits &= add_field("env", options->variables.items[i]);
  return fits;
}

/* A shell gets the words as one line, each protected from it. */
static bool add_shell_line(char **words) {
  static char line[MAX_SUDO_REQUEST];
  size_t used = 0;
  for (char **word = words; *word; word++) {
    if (word != words) line[used++] = ' ';
    for (const char *at = *word; *at; at++) {
      if (used + 4 > sizeof line) return false;
      bool plain = (*at >= '0' && *at <= '9') || (*at >= 'A' && *at <= 'Z') || (*at >= 'a' && *at <= 'z') ||
                   strchr("_-$", *at) || (unsigned char)*at >= 0x80;
      if (!plain) line[used++] = '\\';
      line[used++] = *at;
    }
  }
  line[used] = 0;
  return add_field("argv", "-c") && add_field("argv", line);
}

static bool add_command(const struct sudo_options *options, const struct user *to) {
  const char *own = getenv("SHELL");
  if (!options->login && !options->shell) {
    for (char **word = options->command; *word; word++)
      if (!add_field("argv", *word)) return false;
    return true;
  }
  if (!add_field("argv", options->login || !own ? to->shell : own)) return false;
  if (options->login && !add_field("argv", "-l")) return false;
  return !*options->command || add_shell_line(options->command);
}

static bool add_directory(const struct sudo_options *options, const struct user *to) {
  char own[PATH_MAX];
  const char *directory = options->directory ? options->directory : options->login ? to->home : getcwd(own, sizeof own);
  return add_field("cwd", directory ? directory : "/");
}

/* When our input and output are a terminal, the command gets another one, whose other side is ours. */
static int open_terminal(int *slave) {
  struct winsize size = {.ws_row = 24, .ws_col = 80};
  char columns[16], rows[16];
  if (!isatty(0) || !isatty(1)) return -1;
  int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (master < 0 || unlockpt(master)) return -1;
  *slave = ioctl(master, 0x5441 /* TIOCGPTPEER */, O_RDWR | O_NOCTTY);
  if (*slave < 0) return close(master), -1;
  ioctl(0, TIOCGWINSZ, &size);
  ioctl(master, TIOCSWINSZ, &size);
  snprintf(columns, sizeof columns, "%d", size.ws_col ? size.ws_col : 80);
  snprintf(rows, sizeof rows, "%d", size.ws_row ? size.ws_row : 24);
  if (!add("terminal") || !add(columns) || !add(rows)) return close(master), -1;
  return master;
}

static bool send_request(int connection, const int streams[3]) {
  union {
    struct cmsghdr header;
    char space[CMSG_SPACE(3 * sizeof(int))];
  } control = {0};
  struct iovec data = {request.bytes, request.length};
  struct msghdr message = {.msg_iov = &data,
                           .msg_iovlen = 1,
                           .msg_control = control.space,
                           .msg_controllen = sizeof control.space};
  struct cmsghdr *header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(3 * sizeof(int));
  memcpy(CMSG_DATA(header), streams, 3 * sizeof(int));
  return sendmsg(connection, &message, MSG_NOSIGNAL) >= 0;
}

static int connect_to_agent(void) {
  struct sockaddr_un address = {AF_UNIX, SUDO_SOCKET};
  int connection = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), room = MAX_SUDO_REQUEST * 2;
  if (connection < 0 || connect(connection, (struct sockaddr *)&address, sizeof address)) return -1;
  setsockopt(connection, SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
  return connection;
}

/* As if we had been the command. */
static int finish(int status) {
  if (status < 0) return fail("this sandbox refused to start the command");
  if (!WIFSIGNALED(status)) return WEXITSTATUS(status);
  sigset_t all;
  sigfillset(&all);
  signal(WTERMSIG(status), SIG_DFL);
  sigprocmask(SIG_UNBLOCK, &all, NULL);
  kill(getpid(), WTERMSIG(status));
  return 128 + WTERMSIG(status);
}

int sudo_main(int argc, char **argv) {
  struct sudo_options options;
  struct user to;
  int code = read_sudo_options(argc, argv, &options), slave = -1;
  if (code >= 0) return code;
  if (!find_user(options.user, &to)) return fprintf(stderr, "sudo: unknown user %s\n", options.user), 1;
  bool fits = add_field("as", to.name) && add_directory(&options, &to) && add_environment(&options, &to) &&
              add_command(&options, &to);
  if (!fits) return fail("the command and its variables are too long");
  int connection = connect_to_agent();
  if (connection < 0) return fail("this sandbox has no root user");
  int master = open_terminal(&slave);
  int streams[3] = {0, 1, isatty(2) && master >= 0 ? slave : 2};
  if (master >= 0) streams[0] = streams[1] = slave;
  if (!send_request(connection, streams)) return fail("this sandbox refused the request");
  if (slave >= 0) close(slave);
  return finish(relay(connection, master));
}
