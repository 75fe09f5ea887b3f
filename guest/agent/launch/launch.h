/* The roles that run on the host, before there is a sandbox. */
#ifndef RINGFENCE_LAUNCH_H
#define RINGFENCE_LAUNCH_H

#include "common/common.h"

/* launch.c: `launch` prepares bubblewrap from the launch vector in the environment and executes it. */
_Noreturn void launch_main(void);
/* The same in a process that the fork server has forked: it dies with that server and is named after the host's process. */
_Noreturn void launch(pid_t parent, pid_t host);
/* fork_server.c: `fork-server` starts launchers for the host's process. */
_Noreturn void fork_server_main(void);
/* Reads the launch vector and carries its operations out. Closes every descriptor that it does not name. */
void read_launch_operations(void);
/* Sends us SIGKILL when the parent exits; exits at once if it already has. */
void die_with_parent(pid_t parent);
/* The argv[0] that names the owner of a sandbox: OWNER_PREFIX-<pid namespace>-<pid>-<start time>. */
char *owner_process_name(pid_t owner);

/* A file in memory with this content, to be read from its beginning. It survives exec. */
int memory_file(const void *data, size_t length);
/* Opens a path that must be this inode and contains no symbolic link. The descriptor survives exec. */
int open_source(const char *path, const char *dev, const char *ino);

/* run_as.c: `enter UID GID [CGROUP…] -- PROGRAM …` joins cgroups, switches the user and executes a program. */
_Noreturn void run_as_main(char **argv);
void join_cgroup(const char *directory);

/* container_root.c: `container-root PID DIRECTORY` gives a container of an engine a root of its own. */
_Noreturn void container_root_main(const char *pid, const char *directory);

/* overlay_changes.c: `changes UPPER` lists what the upper directory of an overlay holds. */
int list_overlay_changes(const char *upper);

/* disk_extents.c: lists where a sparse file has data. Returns the exit code. */
int list_disk_extents(const char *path);

/*
 * pod_setup.c: the init container of a Pod: `pod-install DIRECTORY PASSWD GROUP [FILE…]` copies the agent, writes the names of users and
 * groups and creates files that are mounted. Returns the exit code.
 */
int pod_install(char **argv);
/* Fills one of those files with the first file of the tar stream on standard input. */
int pod_fill_file(const char *path);
/* Exits with 0 when a Pod reaches the cluster's API, with 3 when it does not. */
int pod_reach(int tries);
/* Says in the message of the ended container which kernel it saw. */
int pod_kernel(void);

#endif
