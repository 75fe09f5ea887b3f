/* Finds and kills processes by their ancestry. */
#ifndef RINGFENCE_PROCESS_TREE_H
#define RINGFENCE_PROCESS_TREE_H

#include "common/common.h"

/* The parent of a live process; -1 when it is gone or a zombie. */
pid_t live_parent_of(const char *pid);
/* Kills every descendant of `root`, which itself stays. */
void kill_tree(pid_t root);
/* Kills every child of PID 1 that `is_known` does not know, with its descendants. */
void kill_orphans(bool (*is_known)(pid_t pid));

#endif
