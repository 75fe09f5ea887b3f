/* Finds and kills processes by their ancestry. */
#ifndef RINGFENCE_PROCESS_TREE_H
#define RINGFENCE_PROCESS_TREE_H

#include "common/common.h"

/* The parent of a live process; -1 when it is gone or a zombie. A process lives on when only its main thread has exited. */
pid_t live_parent_of(const char *pid);
/*
 * /proc/<pid> shows no memory and no descriptors once the main thread has exited. Calls `shows` with the names below /proc
 * of the process (`12`) and, until it returns true, of its other threads (`12/task/34`). False: it never did.
 */
bool any_thread(const char *pid, bool (*shows)(const char *name, void *result), void *result);
/* Kills every descendant of `root`, which itself stays. */
void kill_tree(pid_t root);
/* Kills every child of PID 1 that `is_known` does not know, with its descendants. */
void kill_orphans(bool (*is_known)(pid_t pid));

#endif
