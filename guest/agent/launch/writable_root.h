/* A private, writable root with a root user, assembled on the host before anything runs in it. */
#ifndef RINGFENCE_WRITABLE_ROOT_H
#define RINGFENCE_WRITABLE_ROOT_H

#include "common/common.h"

/* Each takes the arguments of the operation of that name. */
void root_set_ids(char **arguments);
void root_add_lower(char **arguments);
void root_add_layer(char **arguments);
void root_set_disk(char **arguments);
void root_add_own(char **arguments);
void root_add_mount(char **arguments);
void root_add_temporary(char **arguments);
/* A copy of a mount that becomes part of the root as it is. */
void root_add_tree(int tree, const char *target);

bool root_is_wanted(void);
/* Takes a range of ids, becomes its root user and mounts the root at STAGE/root. */
void root_assemble(void);
/* The descriptor that holds the range; PID 1 must keep it open. */
int root_lock(void);

/*
 * Opens a directory of a root, and creates what is missing. Returns -1 when something else is in its place. SECURITY: the
 * sandbox may have run before and left symbolic links, so none is followed.
 */
int open_in_root(int at, const char *path, uid_t owner);
/* The mount point of a file, or a socket; the same about symbolic links. */
int open_file_in_root(int at, const char *path);

#endif
