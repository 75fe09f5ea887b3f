/* Mounts, privileges, Landlock and seccomp. Every function ends the agent when it fails. */
#ifndef RINGFENCE_CONFINE_H
#define RINGFENCE_CONFINE_H

#include "common/common.h"

/* mounts.c */
void mount_readonly(const char *path);
/* Covers a file with /dev/null, or a directory with an empty one. A path that does not exist is skipped. */
void hide_path(const char *path);
/* Covers the file or directory with this device and inode with an empty one. */
void mask_path(const char *path, const char *dev, const char *ino);
void move_mount_to(const char *staged, const char *target, const char *mode);
/* Writes below `target` go to `changes/upper`; the original stays unchanged. */
void mount_overlay(const char *original, const char *changes, const char *target);
/* Terminals belong to the group 5 from now on, as everywhere on Linux. */
void give_terminals_to_tty(void);

/* confine.c */
/* Forbids new user namespaces, or all but one. */
void limit_user_namespaces(bool allow_one);
/* Enters a user namespace in which user and group `outer` of the current one have this uid and gid. */
void map_user(const char *uid, const char *gid, unsigned outer);
/* PLATFORM: gVisor has no ambient capabilities; without `has_ambient` that is not an error. */
void drop_privileges(bool has_ambient);
/* The same for a sandbox with a root user: keeps what its root user has, and what supervising other users needs. */
void keep_root_capabilities(void);
/* Returns Landlock's ABI version, or 0 when this kernel has none. */
enum landlock_scope { LANDLOCK_SCOPED, LANDLOCK_UNSCOPED };
int landlock_restrict(struct strings *writable, bool files, bool writable_root, enum landlock_scope scope);
/*
 * Only the scope: signals and abstract sockets end at the sandbox. PID 1 and isolated commands have it in common, because
 * PID 1 could not signal processes of another scope.
 */
void landlock_set_scope(void);
void seccomp_load(int fd);
/* Sends the ready frame with what the kernel says about this process. */
void report_ready(int landlock, bool supervised);

#endif
