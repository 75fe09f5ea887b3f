/* PID 1 of a sandbox: reads the configuration, confines itself and starts commands. */
#ifndef RINGFENCE_INIT_H
#define RINGFENCE_INIT_H

#include "common/common.h"

/* init.c: PID 1 below bubblewrap. The configuration and the seccomp filter come as descriptors. */
_Noreturn void init_main(int config, int filter);
/* Hides the configuration's paths of the kernel, and makes others read-only. */
void cover_kernel_files(void);
/* The second half of it, for callers whose mounts exist and whose privileges are dropped already. */
_Noreturn void serve_in_container(int filter);

/* container_init.c: PID 1 of a container that an engine made. The configuration comes over the channel. */
_Noreturn void container_main(void);
/* The same in a Pod: the channel is a Unix socket that the container beside it creates. */
_Noreturn void pod_main(const char *path);
/* What both kinds of PID 1 of a Pod do once they have a channel. */
_Noreturn void serve_pod(void);

/* pod_takeover.c: ends every process and starts PID 1 again, for another server. Returns if that fails. */
void pod_start_again(void);
/* The new PID 1; `disk_used` is what its files take already. */
_Noreturn void pod_again_main(const char *disk_used);

/* A seccomp filter as a descriptor that seccomp_load() can read. */
int filter_to_memfd(const char *bytes, size_t length);

#ifdef RINGFENCE_TEST
_Noreturn void serve_unconfined(int config);
#endif

#endif
