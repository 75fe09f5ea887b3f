#include "limits/limits.h"
#include "supervise/supervise.h"

#include <sys/mman.h>
#include <sys/sysmacros.h>

/* Calls that create shared memory, which is counted at its creation (limits/memory_usage.c). */

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8U
#define MFD_EXEC 16U
#endif

int emulate_memfd_create(const struct supervised_call *call, unsigned flags) {
  char name[PATH_MAX];
  int error = read_caller_path(call, call->args[0], name);
  if (error) return error == -ENAMETOOLONG ? -EINVAL : error;
  if (flags & ~(MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL | MFD_EXEC)) return -EINVAL;
  int fd = counted_memfd_create(name, flags & ~MFD_CLOEXEC);
  if (fd < 0) return fd;
  error = reply_with_fd(call, fd, flags & MFD_CLOEXEC ? O_CLOEXEC : 0);
  return error ? error : REPLIED;
}

/* A shared mapping of /dev/zero is anonymous memory too. */
static bool is_dev_zero(pid_t caller, int fd) {
  char name[64];
  struct stat stat;
  snprintf(name, sizeof name, "%d/fd/%d", caller, fd);
  return !fstatat(proc_fd, name, &stat, 0) && S_ISCHR(stat.st_mode) && stat.st_rdev == makedev(1, 5);
}

/*
 * Only anonymous shared mappings are counted. All may continue in the kernel: the length is not behind a pointer, so
 * what was counted is what is mapped.
 */
int check_shared_mapping(const struct supervised_call *call, size_t length, int flags, int fd) {
  if (!(flags & MAP_ANONYMOUS)) return is_dev_zero(call->caller, fd) ? -ENODEV : 0;
  return reserve_shared_memory(length) ? 0 : -ENOMEM;
}
