#include "front.h"

#include <sys/file.h>
#include <sys/wait.h>
#include <time.h>

extern char **environ;

/* A broker that could not start is not started again at once; and the command that runs now goes first. */
enum { RETRY_SECONDS = 10, DELAY_MS = 200, LOCK_FD = 3 };

/*
 * SECURITY: the broker keeps its environment for minutes, so it gets only what tells where its files are and how text
 * looks; a request brings its own variables. src/cli/broker/request-check.ts compares the same names.
 */
static bool is_for_broker(const char *entry) {
  static const char *const NAMES[] = {"HOME=",
                                      "PATH=",
                                      "TMPDIR=",
                                      "TMP=",
                                      "TEMP=",
                                      "TZ=",
                                      "LANG=",
                                      "LANGUAGE=",
                                      "LC_",
                                      "XDG_STATE_HOME=",
                                      "USER=",
                                      "RINGFENCE_HOME=",
                                      "RINGFENCE_BROKER_IDLE=",
                                      "LOGNAME="};
  for (size_t i = 0; i < LENGTH(NAMES); i++)
    if (!strncmp(entry, NAMES[i], strlen(NAMES[i]))) return true;
  return false;
}

/* The lock is held as long as the broker lives; -1 when another one has it. */
static int take_lock(void) {
  int directory = open_broker_directory(true);
  if (directory < 0) return -1;
  int fd = openat(directory, "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
  close(directory);
  struct stat stat;
  bool is_free = fd >= 0 && !flock(fd, LOCK_EX | LOCK_NB) && !fstat(fd, &stat);
  /* It holds the pid of the last broker: an empty file says that nobody has tried yet. */
  time_t age = is_free ? time(NULL) - stat.st_mtim.tv_sec : 0;
  /* A time in the future says only that the clock was set back. */
  if (is_free && stat.st_size > 0 && age >= 0 && age < RETRY_SECONDS) is_free = false;
  if (is_free && !ftruncate(fd, 0)) return fd;
  if (fd >= 0) close(fd);
  return -1;
}

_Noreturn static void become_broker(const struct invocation *invocation, int lock) {
  dprintf(lock, "%d\n", getpid());
  struct strings env = {0};
  for (char **entry = environ; *entry; entry++)
    if (is_for_broker(*entry)) strings_add(&env, *entry);
  /* Node reads the program after this: a build that is replaced meanwhile must not pass for the new one. */
  char build[BUILD_LENGTH], variable[BUILD_LENGTH + sizeof "RINGFENCE_BROKER_BUILD="];
  if (!build_of(invocation->program, build)) _exit(1);
  snprintf(variable, sizeof variable, "RINGFENCE_BROKER_BUILD=%s", build);
  strings_add(&env, variable);
  strings_add(&env, "RINGFENCE_BROKER_LOCK=3");
  int null = open("/dev/null", O_RDWR);
  if (null < 0) _exit(1);
  for (int fd = 0; fd < 3; fd++) dup2(null, fd);
  if (lock != LOCK_FD) dup2(lock, LOCK_FD);
  else fcntl(lock, F_SETFD, 0);
  syscall(SYS_close_range, LOCK_FD + 1, ~0U, 0);
  default_signals();
  struct timespec delay = {.tv_nsec = DELAY_MS * 1000000L};
  nanosleep(&delay, NULL);
  if (chdir("/")) _exit(1);
  char *argv[] = {"node", (char *)invocation->script, "broker", NULL};
  execve(invocation->node, argv, strings_vector(&env));
  _exit(1);
}

/* Forked twice: the broker is nobody's child, and in a session of its own. */
void start_broker(const struct invocation *invocation) {
  int lock = take_lock();
  if (lock < 0) return;
  pid_t pid = fork();
  if (pid == 0) {
    setsid();
    if (fork() == 0) become_broker(invocation, lock);
    _exit(0);
  }
  close(lock);
  if (pid > 0) waitpid(pid, NULL, 0);
}
