/* User namespaces that translate ids, and mounts whose files are translated by one. */
#ifndef RINGFENCE_ID_MAPPING_H
#define RINGFENCE_ID_MAPPING_H

#include "common/common.h"

#define MOUNT_RDONLY 0x1

/* A user namespace with these lines in its uid_map and gid_map. */
int make_mapped_namespace(const char *users, const char *groups);
/* A user namespace in which ids from `inside` on are the host's ids from `outside` on. */
int make_user_namespace(unsigned inside, unsigned outside);

/*
 * A copy of the mount of `source`, in which a user namespace translates the ids of files. Without one, and with everything
 * that is mounted below, nothing is translated.
 */
int mapped_tree(int source, uint64_t attributes, int user_namespace);
/* Mounts such a copy. */
void attach(int tree, int target, const char *path);

#endif
