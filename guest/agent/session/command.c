#include "session/command.h"
#include "common/channel.h"
#include "common/message.h"
#include "files/files.h"
#include "limits/limits.h"
#include "session/users/users.h"
#include "supervise/supervise.h"

#include <dirent.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>

static const struct field FIELDS[] = {COMMAND_FIELDS(FIELD_ROW)};

bool is_command_field(const char *name) { return find_field(FIELDS, LENGTH(FIELDS), name); }

/* A later value of a variable replaces an earlier one. */
void set_variable(struct strings *env, const char *entry) {
  size_t name = strcspn(entry, "=") + 1;
  for (size_t i = 0; i < env->count; i++)
    if (!strncmp(env->items[i], entry, name)) {
      env->items[i] = (char *)entry;
      return;
    }
  strings_add(env, entry);
}

void parse_command_field(struct command_spec *spec, const char *name, char **at, const char *end) {
  const char *arguments[MAX_ARITY];
  read_arguments(FIELDS, LENGTH(FIELDS), name, at, end, arguments);
  if (!strcmp(name, "argv")) strings_add(&spec->argv, arguments[0]);
  else if (!strcmp(name, "env")) set_variable(&spec->env, arguments[0]);
  else if (!strcmp(name, "cwd")) spec->cwd = arguments[0];
  else if (!strcmp(name, "as")) spec->user = arguments[0];
  else if (!strcmp(name, "owner")) spec->owner = arguments[0];
  else if (!strcmp(name, "builtin")) spec->builtin = true;
  else if (!strcmp(name, "input")) spec->input = true;
  else if (!strcmp(name, "offline")) spec->offline = true;
  else if (!strcmp(name, "wait-for-start")) spec->wait_for_start = true;
  else if (!strcmp(name, "rlimit")) {
    strings_add(&spec->rlimits, arguments[0]);
    strings_add(&spec->rlimits, arguments[1]);
  } else if (!strcmp(name, "terminal")) {
    spec->columns = (unsigned short)atoi(arguments[0]);
    spec->rows = (unsigned short)atoi(arguments[1]);
  } else die("unknown field %s", name);
}

static const struct {
  const char *name;
  int resource;
} RESOURCES[] = {{"nproc", RLIMIT_NPROC},
                 {"fsize", RLIMIT_FSIZE},
                 {"data", RLIMIT_DATA},
                 {"core", RLIMIT_CORE},
                 {"nofile", RLIMIT_NOFILE}};

static void set_rlimits(const struct strings *rlimits) {
  for (size_t i = 0; i + 1 < rlimits->count; i += 2) {
    struct rlimit limit;
    int resource = -1;
    for (size_t n = 0; n < LENGTH(RESOURCES); n++)
      if (!strcmp(rlimits->items[i], RESOURCES[n].name)) resource = RESOURCES[n].resource;
    if (resource < 0 || getrlimit(resource, &limit)) die("rlimit %s: %s", rlimits->items[i], strerror(errno));
    rlim_t most = limit.rlim_max;
    limit.rlim_cur = strtoull(rlimits->items[i + 1], NULL, 10);
    /* RLIMIT_NPROC counts all processes of the user, so allow for the subreapers. */
    if (resource == RLIMIT_NPROC && (limit.rlim_cur += agent_processes()) > most) limit.rlim_cur = most;
    /* The number of open files is only a soft limit, as usual; the others are hard limits. */
    if (resource != RLIMIT_NOFILE) limit.rlim_max = limit.rlim_cur;
    if (setrlimit(resource, &limit)) die("rlimit %s: %s", rlimits->items[i], strerror(errno));
  }
}

/* Searches PATH like a shell, so that a missing program is reported in the usual way. */
static void exec_program(struct command_spec *spec) {
  char **argv = strings_vector(&spec->argv), **envp = strings_vector(&spec->env);
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

/* SECURITY: the host may have to move the process, for example into a cgroup, before the command starts. */
static void wait_for_start_message(int socket, bool is_sudo) {
  char kind, text[16];
  int fd;
  if (receive_message(socket, &kind, text, sizeof text, &fd) >= 0 && kind == MESSAGE_START) return;
  if (is_sudo) dprintf(2, "sudo: the host refused to start the command\n");
  _exit(EXIT_SETUP_FAILED);
}

enum { ON_EXEC = 4 /* CLOSE_RANGE_CLOEXEC */ };

/* PLATFORM: gVisor does not support every form of close_range; there each descriptor is closed by itself. */
static bool close_other_fds(unsigned flags) {
  if (!syscall(SYS_close_range, 3, INT_MAX, flags)) return true;
  DIR *open = errno == EINVAL || errno == ENOSYS ? opendir("/proc/self/fd") : NULL;
  if (!open) return false;
  for (struct dirent *entry; (entry = readdir(open));) {
    int fd = atoi(entry->d_name);
    if (fd < 3 || fd == dirfd(open)) continue;
    if (flags == ON_EXEC) fcntl(fd, F_SETFD, FD_CLOEXEC);
    else close(fd);
  }
  closedir(open);
  return true;
}

/*
 * Gives commands a longer scheduler slice than the agent and the host have. The kernel prefers a waking task with a
 * shorter slice, so a busy command does not delay them, and the share of the CPU stays equal. PLATFORM: kernels before
 * 6.12 ignore it.
 */
enum { COMMAND_SLICE_NS = 20 * 1000 * 1000 };

static void set_scheduler_slice(void) {
  struct {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
  } attributes = {.size = sizeof attributes,
                  .flags = 0x08 /* SCHED_FLAG_KEEP_POLICY */,
                  .nice = getpriority(PRIO_PROCESS, 0),
                  .runtime = COMMAND_SLICE_NS};
  syscall(SYS_sched_setattr, 0, &attributes, 0);
}

static void start_supervision(int socket) {
  int listener = supervision_install();
  if (listener < 0) die("cannot install the supervision filter: %s", strerror(errno));
  if (!send_message(socket, MESSAGE_LISTENER, "", 0, listener)) _exit(EXIT_SETUP_FAILED);
}

_Noreturn void exec_command(struct command_spec *spec, int socket, bool supervised, bool terminal) {
  sigset_t none;
  sigemptyset(&none);
  child_socket = socket;
  if (terminal) {
    if (setsid() < 0 || ioctl(0, TIOCSCTTY, 0)) die("cannot open the terminal: %s", strerror(errno));
  } else setpgid(0, 0);
  umask(022); /* PID 1 has umask 0, because it creates files with modes that are already masked */
  if (has_root_user) become_user(spec);
  if (chdir(spec->cwd)) die("cannot enter %s: %s", spec->cwd, strerror(errno));
  set_rlimits(&spec->rlimits);
  set_scheduler_slice();
  if (spec->wait_for_start) wait_for_start_message(socket, spec->is_sudo);
  if (supervised) start_supervision(socket);
  /* SECURITY: all descriptors except the standard three are closed, at exec or, without exec, now. */
  if (!close_other_fds(spec->builtin ? 0 : ON_EXEC)) die("close_range: %s", strerror(errno));
  sigprocmask(SIG_SETMASK, &none, NULL);
  signal(SIGPIPE, SIG_DFL);
  if (spec->builtin) {
    /* PID 1 reads the paths of supervised calls from our memory. */
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
    _exit(run_builtin(strings_vector(&spec->argv)));
  }
  exec_program(spec);
  bool missing = errno == ENOENT;
  dprintf(2, "ringfence: %s: %s\n", spec->argv.items[0],
          missing ? "command not found in the sandbox" : strerror(errno));
  _exit(missing ? EXIT_NOT_FOUND : EXIT_NOT_EXECUTABLE);
}
