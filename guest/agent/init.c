#include "agent.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>

/* What the host asked for; every string points into the configuration that came by descriptor. */
static struct {
  struct strings readonly, hidden, masks, nested, writable, argv, env, rlimits;
  const char *cwd, *uid, *gid;
  bool waits;      /* the host gives the word when the command may start */
  bool open_files; /* the whole file system is granted: Landlock has nothing to hold */
} plan;

static struct {
  const char *name;
  size_t arity;
  struct strings *list;
} FIELDS[] = {
    {"env", 1, &plan.env},           {"argv", 1, &plan.argv},
    {"readonly", 1, &plan.readonly}, {"mask", 3, &plan.masks},
    {"hide", 1, &plan.hidden},
    {"nested", 3, &plan.nested},     {"writable", 1, &plan.writable},
    {"rlimit", 2, &plan.rlimits},    {"guard", 1, &protection.guarded},
    {"protect-root", 1, &protection.roots},   {"protect-inner", 1, &protection.inner},
    {"protect-name", 1, &protection.names},   {"protect-except", 1, &protection.except},
    {"protect-path", 1, &protection.pinned},
};

static char *read_config(int fd, size_t *length) {
  struct stat stat;
  if (fstat(fd, &stat)) die("configuration: %s", strerror(errno));
  char *text = mmap(NULL, (size_t)stat.st_size + 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (text == MAP_FAILED) die("out of memory");
  for (*length = 0; *length < (size_t)stat.st_size;) {
    ssize_t got = read(fd, text + *length, (size_t)stat.st_size - *length);
    if (got <= 0) die("configuration: %s", strerror(errno));
    *length += (size_t)got;
  }
  close(fd);
  return text;
}

static const char *take(char **at, const char *end) {
  if (*at >= end) die("configuration ends too early");
  const char *item = *at;
  *at += strlen(*at) + 1;
  return item;
}

static void parse_field(const char *name, char **at, const char *end) {
  for (size_t i = 0; i < sizeof FIELDS / sizeof *FIELDS; i++) {
    if (strcmp(name, FIELDS[i].name)) continue;
    for (size_t n = 0; n < FIELDS[i].arity; n++) strings_add(FIELDS[i].list, take(at, end));
    return;
  }
  if (!strcmp(name, "cwd")) plan.cwd = take(at, end);
  else if (!strcmp(name, "user")) plan.uid = take(at, end), plan.gid = take(at, end);
  else if (!strcmp(name, "wait")) plan.waits = true;
  else if (!strcmp(name, "open-files")) plan.open_files = ceilings.shared_tmp = true;
  else if (!strcmp(name, "memory")) ceilings.memory_bytes = strtoull(take(at, end), NULL, 10);
  else if (!strcmp(name, "disk")) ceilings.disk_bytes = strtoull(take(at, end), NULL, 10);
  else if (!strcmp(name, "processes")) ceilings.processes = strtoull(take(at, end), NULL, 10);
  else if (!strcmp(name, "tick")) ceilings.tick = atoi(take(at, end));
  else die("configuration: unknown field %s", name);
}

static void parse_config(int fd) {
  size_t length;
  char *at = read_config(fd, &length);
  const char *end = at + length;
  while (at < end) parse_field(take(&at, end), &at, end);
  if (!plan.argv.count || !plan.cwd) die("configuration: no command");
}

static void finish_mounts(void) {
  for (size_t i = 0; i + 2 < plan.nested.count; i += 3)
    move_mount_to(plan.nested.items[i], plan.nested.items[i + 1], plan.nested.items[i + 2]);
  for (size_t i = 0; i + 2 < plan.masks.count; i += 3)
    mask_path(plan.masks.items[i], plan.masks.items[i + 1], plan.masks.items[i + 2]);
  for (size_t i = 0; i < plan.hidden.count; i++) hide_path(plan.hidden.items[i]);
  for (size_t i = 0; i < plan.readonly.count; i++) make_readonly(plan.readonly.items[i]);
}

/* SECURITY: names are judged by the paths that the kernel reports; a guarded mount must be where we think it is. */
static void check_guarded(void) {
  char path[PATH_MAX];
  for (size_t i = 0; i < protection.guarded.count; i++) {
    const char *root = protection.guarded.items[i][0] ? protection.guarded.items[i] : "/";
    int fd = open(root, O_PATH | O_CLOEXEC);
    if (fd < 0 || !path_of(fd, path, sizeof path) || strcmp(path, root)) die("%s is somewhere else in the sandbox", root);
    close(fd);
  }
}

static const struct {
  const char *name;
  int resource;
} RESOURCES[] = {{"nproc", RLIMIT_NPROC}, {"fsize", RLIMIT_FSIZE}, {"data", RLIMIT_DATA}, {"core", RLIMIT_CORE}, {"nofile", RLIMIT_NOFILE}};

static void set_rlimits(void) {
  for (size_t i = 0; i + 1 < plan.rlimits.count; i += 2) {
    struct rlimit limit;
    limit.rlim_cur = limit.rlim_max = strtoull(plan.rlimits.items[i + 1], NULL, 10);
    int resource = -1;
    for (size_t n = 0; n < sizeof RESOURCES / sizeof *RESOURCES; n++)
      if (!strcmp(plan.rlimits.items[i], RESOURCES[n].name)) resource = RESOURCES[n].resource;
    if (resource < 0 || setrlimit(resource, &limit)) die("rlimit %s: %s", plan.rlimits.items[i], strerror(errno));
  }
}

static void send_fd(int socket, int fd) {
  char byte = 0, space[CMSG_SPACE(sizeof(int))] = {0};
  struct iovec data = {&byte, 1};
  struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
  struct cmsghdr *header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  memcpy(CMSG_DATA(header), &fd, sizeof fd);
  if (sendmsg(socket, &message, 0) != 1) die("guard: %s", strerror(errno));
}

static int receive_fd(int socket) {
  char byte, space[CMSG_SPACE(sizeof(int))] = {0};
  struct iovec data = {&byte, 1};
  struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1) return -1;
  struct cmsghdr *header = CMSG_FIRSTHDR(&message);
  int fd;
  if (!header || header->cmsg_type != SCM_RIGHTS) return -1;
  memcpy(&fd, CMSG_DATA(header), sizeof fd);
  return fd;
}

/* Looks the program up as a shell would, so that a missing one says so in the usual way. */
static void exec_command(void) {
  char **argv = strings_vector(&plan.argv), **envp = strings_vector(&plan.env);
  const char *path = "/usr/local/bin:/usr/bin:/bin";
  for (char **entry = envp; *entry; entry++)
    if (!strncmp(*entry, "PATH=", 5)) path = *entry + 5;
  if (strchr(argv[0], '/')) {
    execve(argv[0], argv, envp);
    return;
  }
  int worst = ENOENT;
  for (const char *at = path; *at;) {
    size_t length = strcspn(at, ":");
    char full[PATH_MAX];
    snprintf(full, sizeof full, "%.*s/%s", (int)length, at, argv[0]);
    execve(full, argv, envp);
    if (errno != ENOENT && errno != ENOTDIR) worst = errno;
    at += length + (at[length] == ':');
  }
  errno = worst;
}

static _Noreturn void run_command(int socket, bool guarded) {
  sigset_t none;
  sigemptyset(&none);
  setpgid(0, 0);
  umask(022); /* PID 1 itself has none, because it creates files with modes that are already masked */
  if (chdir(plan.cwd)) die("cannot enter %s: %s", plan.cwd, strerror(errno));
  set_rlimits();
  if (guarded) {
    int listener = guard_install();
    if (listener < 0) die("guard: %s", strerror(errno));
    send_fd(socket, listener);
  }
  /* SECURITY: every descriptor but the standard three closes at exec. */
  if (syscall(SYS_close_range, 3, ~0U, 4 /* CLOSE_RANGE_CLOEXEC */)) die("close_range: %s", strerror(errno));
  /* Readable and traceable again, like any process: only PID 1 is not. */
  sigprocmask(SIG_SETMASK, &none, NULL);
  signal(SIGPIPE, SIG_DFL);
  exec_command();
  dprintf(2, "ringfence: %s: %s\n", plan.argv.items[0], errno == ENOENT ? "command not found in the sandbox" : strerror(errno));
  _exit(errno == ENOENT ? 127 : 126);
}

/* SECURITY: until the host has judged the command and written that down, it does not exist. */
static void wait_for_word(void) {
  unsigned char frame[5];
  ssize_t got = recv(control_fd, frame, sizeof frame, MSG_WAITALL);
  if (got != sizeof frame || frame[0] != FRAME_GO) _exit(125);
}

static pid_t start_command(int *listener) {
  int sockets[2];
  bool guarded = protection.guarded.count > 0;
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets)) die("socketpair: %s", strerror(errno));
  pid_t child = fork();
  if (child < 0) die("cannot start a process: %s", strerror(errno));
  if (child == 0) {
    close(sockets[0]);
    run_command(sockets[1], guarded);
  }
  close(sockets[1]);
  *listener = guarded ? receive_fd(sockets[0]) : -1;
  close(sockets[0]);
  if (guarded && *listener < 0) die("guard: no listener");
  return child;
}

static _Noreturn void finish(int status) {
  bool signaled = WIFSIGNALED(status);
  unsigned char payload[2] = {signaled, (unsigned char)(signaled ? WTERMSIG(status) : WEXITSTATUS(status))};
  report(FRAME_EXIT, payload, sizeof payload);
  /* The end of PID 1 ends every process of the sandbox. */
  _exit(signaled ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
}

static void reap(pid_t command) {
  int status, last = 0;
  bool ended = false;
  for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;)
    if (pid == command) ended = true, last = status;
  if (ended) finish(last);
}

static void obey(pid_t command) {
  unsigned char frame[9];
  ssize_t got = recv(control_fd, frame, sizeof frame, 0);
  if (got <= 0) _exit(137); /* the host is gone, and so are we */
  if (got == 9 && frame[0] == FRAME_SIGNAL && frame[5] < 65) kill(-command, frame[5]);
}

static void check_ceilings(void) {
  const char *limit = usage_exceeded();
  if (!limit) return;
  report(FRAME_LIMIT, limit, strlen(limit));
  kill(-1, SIGKILL);
}

static _Noreturn void serve(pid_t command, int listener, int signals) {
  struct pollfd watched[] = {{control_fd, POLLIN, 0}, {listener, POLLIN, 0}, {signals, POLLIN, 0}};
  int tick = ceilings.memory_bytes || ceilings.disk_bytes || ceilings.processes ? ceilings.tick : -1;
  int64_t next = milliseconds() + tick;
  for (;;) {
    poll(watched, 3, tick);
    if (watched[1].revents & POLLIN) guard_serve(listener);
    else if (watched[1].revents) watched[1].fd = -1; /* nobody is watched any more */
    if (watched[0].revents) obey(command);
    if (watched[2].revents) {
      struct signalfd_siginfo info;
      while (read(signals, &info, sizeof info) > 0) continue;
      reap(command);
    }
    if (tick > 0 && milliseconds() >= next) {
      check_ceilings();
      next = milliseconds() + tick;
    }
  }
}

_Noreturn void init(int config, int filter) {
  sigset_t blocked;
  parse_config(config);
  umask(0);
  walk_setup();
  forbid_user_namespaces(plan.uid);
  finish_mounts();
  check_guarded();
  if (plan.uid) become_user(plan.uid, plan.gid);
  drop_privileges();
  int landlock = restrict_files(&plan.writable, !plan.open_files);
  load_filter(filter);
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGCHLD);
  sigprocmask(SIG_BLOCK, &blocked, NULL);
  int signals = signalfd(-1, &blocked, SFD_CLOEXEC | SFD_NONBLOCK), listener;
  if (signals < 0) die("signalfd: %s", strerror(errno));
  if (control_fd >= 0) fcntl(control_fd, F_SETFD, FD_CLOEXEC);
  describe_layers(landlock, protection.guarded.count > 0);
  if (plan.waits) wait_for_word();
  pid_t command = start_command(&listener);
  serve(command, listener, signals);
}
