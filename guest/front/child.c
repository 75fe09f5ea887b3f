#include "front.h"

#include <sys/resource.h>
#include <sys/wait.h>

/* Streams of a launched process: standard input, output, error, and the channels after them. */
enum { MAX_STREAMS = 6, ABOVE_STREAMS = 20 };

struct launch {
  const char *file, *cwd, *token;
  const char *streams; /* one letter each: `i` inherited, `n` /dev/null, `p` a connection to the broker */
  struct strings argv, env;
  int fds[MAX_STREAMS];
};

static bool take_list(struct strings *list, char **at, const char *end) {
  const char *count = take_string(at, end);
  for (unsigned long left = count ? strtoul(count, NULL, 10) : 0; left; left--) {
    const char *item = take_string(at, end);
    if (!item) return false;
    strings_add(list, item);
  }
  return count != NULL;
}

static bool read_launch(struct launch *launch, char *at, const char *end) {
  launch->file = take_string(&at, end);
  launch->cwd = take_string(&at, end);
  launch->token = take_string(&at, end);
  launch->streams = take_string(&at, end);
  return launch->streams && strlen(launch->streams) <= MAX_STREAMS && take_list(&launch->argv, &at, end) &&
         take_list(&launch->env, &at, end) && launch->argv.count > 0;
}

/* A stream between the broker and the process, over a connection of its own. */
static int attach(const char *token, size_t index) {
  struct secrets secrets;
  int fd = connect_broker(&secrets);
  struct buffer payload = {0};
  char number[12];
  if (fd < 0) return -1;
  snprintf(number, sizeof number, "%d", (int)index);
  buffer_add_string(&payload, token);
  buffer_add_string(&payload, number);
  bool is_sent = send_front_frame(fd, BROKER_ATTACH, payload.bytes, payload.length);
  free(payload.bytes);
  wait_without_limit(fd);
  if (is_sent) return fd;
  close(fd);
  return -1;
}

/* All above the numbers that the process will see, so that none is overwritten before it is used. */
static bool open_streams(struct launch *launch) {
  for (size_t i = 0; launch->streams[i]; i++) {
    char kind = launch->streams[i];
    int fd = kind == 'p' ? attach(launch->token, i) : kind == 'n' ? open("/dev/null", O_RDWR | O_CLOEXEC) : (int)i;
    launch->fds[i] = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, ABOVE_STREAMS);
    if (kind != 'i' && fd >= 0) close(fd);
    if (launch->fds[i] < 0) return false;
  }
  return true;
}

void default_signals(void) {
  sigset_t none;
  for (int number = 1; number < NSIG; number++) signal(number, SIG_DFL);
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, NULL);
}

/* Node raises its own limit of open files, and every process that it starts inherits that. */
static void raise_open_files(void) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit)) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

/* What Node's spawn does with `detached`. */
_Noreturn static void execute(struct launch *launch, int report) {
  setsid();
  default_signals();
  raise_open_files();
  for (size_t i = 0; launch->streams[i]; i++) dup2(launch->fds[i], (int)i);
  syscall(SYS_close_range, (unsigned)strlen(launch->streams), ~0U, 4 /* CLOSE_RANGE_CLOEXEC */);
  if (!chdir(launch->cwd)) execve(launch->file, strings_vector(&launch->argv), strings_vector(&launch->env));
  int error = errno;
  write_all(report, &error, sizeof error);
  _exit(127);
}

static int start(struct launch *launch, struct child *child) {
  int report[2], error = 0;
  if (pipe2(report, O_CLOEXEC)) return errno;
  pid_t pid = fork();
  if (pid == 0) execute(launch, report[1]);
  close(report[1]);
  if (pid < 0) error = EAGAIN;
  else if (read(report[0], &error, sizeof error) == sizeof error) waitpid(pid, NULL, 0);
  else child->pid = pid;
  close(report[0]);
  return error;
}

int launch_child(struct child *child, char *payload, size_t length) {
  struct launch launch = {0};
  for (size_t i = 0; i < MAX_STREAMS; i++) launch.fds[i] = -1;
  int error = !read_launch(&launch, payload, payload + length) ? EINVAL
              : !open_streams(&launch)                         ? EMFILE
                                                               : start(&launch, child);
  for (size_t i = 0; i < MAX_STREAMS; i++)
    if (launch.fds[i] >= 0) close(launch.fds[i]);
  free(launch.argv.items);
  free(launch.env.items);
  return error;
}
