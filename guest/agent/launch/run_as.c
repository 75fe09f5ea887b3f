#include "launch/launch.h"

#include <grp.h>

/*
 * `run-as UID GID [CGROUP…] -- PROGRAM …` runs on the host, before a hypervisor. The cgroups limit the program from
 * its first instruction on. An empty UID keeps the user.
 */

static int open_in_directory(const char *directory, const char *name) {
  char path[PATH_MAX];
  snprintf(path, sizeof path, "%s/%s", directory, name);
  return open(path, O_WRONLY | O_CLOEXEC);
}

/*
 * Moving another process stops every fork on the host for some milliseconds; a thread that moves itself does not, and
 * we have only one thread. PLATFORM: in cgroup v2 only whole processes can be moved.
 */
void join_cgroup(const char *directory) {
  int fd = open_in_directory(directory, "tasks");
  if (fd < 0) fd = open_in_directory(directory, "cgroup.procs");
  if (fd < 0 || write(fd, "0", 1) != 1) die("cgroup %s: %s", directory, strerror(errno));
  close(fd);
}

static void switch_user(const char *uid, const char *gid) {
  uid_t user = (uid_t)strtoul(uid, NULL, 10);
  gid_t group = (gid_t)strtoul(gid, NULL, 10);
  if (!user || !group || setgroups(0, NULL) || setresgid(group, group, group) || setresuid(user, user, user))
    die("cannot switch to user %s: %s", uid, strerror(errno));
}

_Noreturn void run_as_main(char **argv) {
  pid_t parent = getppid();
  const char *uid = argv[0], *gid = argv[0] ? argv[1] : NULL;
  if (!gid) die("run-as: no user");
  for (argv += 2; *argv && strcmp(*argv, "--"); argv++) join_cgroup(*argv);
  if (!argv[0] || !argv[1]) die("run-as: no program");
  if (*uid) switch_user(uid, gid);
  die_with_parent(parent); /* setresuid clears the parent-death signal */
  const char *program = argv[1];
  argv[1] = owner_process_name(parent);
  execv(program, argv + 1);
  die("%s: %s", program, strerror(errno));
}
