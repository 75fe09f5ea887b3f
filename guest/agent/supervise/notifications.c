#include "supervise/supervise.h"
#include "supervise/unix_sockets.h"

#include <linux/seccomp.h>
#include <sys/ioctl.h>

/* Traces the call. Returns whether it may continue in the kernel. */
static bool is_only_traced(const struct supervised_call *call, int number) {
  const __u64 *a = call->args;
  bool writes = false;
  if (number == SYS_openat)
    trace_access(call, (writes = a[2] & WRITE_INTENT) ? ACCESS_KIND_WRITE : ACCESS_KIND_READ, (int)a[0], a[1]);
#ifdef SYS_open
  else if (number == SYS_open)
    trace_access(call, (writes = a[1] & WRITE_INTENT) ? ACCESS_KIND_WRITE : ACCESS_KIND_READ, AT_FDCWD, a[0]);
#endif
  else if (number == SYS_execve) trace_access(call, ACCESS_KIND_START, AT_FDCWD, a[0]);
  else if (number == SYS_execveat) trace_access(call, ACCESS_KIND_START, (int)a[0], a[1]);
  else return false;
  return !writes;
}

static int dispatch(const struct supervised_call *call, int number) {
  const __u64 *a = call->args;
  switch (number) {
    case SYS_openat: return emulate_open(call, (int)a[0], a[1], (int)a[2], (mode_t)a[3]);
    case SYS_mkdirat: return emulate_create(call, (int)a[0], a[1], (mode_t)a[2], 0, true);
    case SYS_mknodat: return emulate_create(call, (int)a[0], a[1], (mode_t)a[2], (dev_t)a[3], false);
    case SYS_unlinkat: return emulate_unlink(call, (int)a[0], a[1], (int)a[2]);
    case SYS_renameat2: return emulate_rename(call, (int)a[0], a[1], (int)a[2], a[3], (unsigned)a[4]);
    case SYS_linkat: return emulate_link(call, (int)a[0], a[1], (int)a[2], a[3], (int)a[4]);
    case SYS_symlinkat: return emulate_symlink(call, a[0], (int)a[1], a[2]);
    case SYS_truncate: return emulate_truncate(call, a[0], (off_t)a[1]);
    case SYS_memfd_create: return emulate_memfd_create(call, (unsigned)a[1]);
    case SYS_connect: return emulate_connect(call, (int)a[0], a[1], a[2]);
    case SYS_bind: return emulate_bind(call, (int)a[0], a[1], a[2]);
    case SYS_fchmod: return emulate_chmod(call, (int)a[0], 0, (mode_t)a[1], AT_EMPTY_PATH);
    case SYS_fchown: return emulate_chown(call, (int)a[0], 0, (uid_t)a[1], (gid_t)a[2], AT_EMPTY_PATH);
    case SYS_fchownat: return emulate_chown(call, (int)a[0], a[1], (uid_t)a[2], (gid_t)a[3], (int)a[4]);
    case SYS_utimensat: return emulate_utimes(call, (int)a[0], a[1], a[2], TIMESPECS, (int)a[3]);
    case SYS_setxattr: return emulate_setxattr(call, AT_FDCWD, a[0], 0);
    case SYS_lsetxattr: return emulate_setxattr(call, AT_FDCWD, a[0], AT_SYMLINK_NOFOLLOW);
    case SYS_fsetxattr: return emulate_setxattr(call, (int)a[0], 0, 0);
    case SYS_removexattr: return emulate_removexattr(call, AT_FDCWD, a[0], 0);
    case SYS_lremovexattr: return emulate_removexattr(call, AT_FDCWD, a[0], AT_SYMLINK_NOFOLLOW);
    case SYS_fremovexattr: return emulate_removexattr(call, (int)a[0], 0, 0);
    case SYS_fchmodat: return emulate_chmod(call, (int)a[0], a[1], (mode_t)a[2], 0);
    case SYS_fchmodat2: return emulate_chmod(call, (int)a[0], a[1], (mode_t)a[2], (int)a[3]);
#ifdef SYS_renameat
    case SYS_renameat: return emulate_rename(call, (int)a[0], a[1], (int)a[2], a[3], 0);
#endif
#ifdef SYS_open
    case SYS_open: return emulate_open(call, AT_FDCWD, a[0], (int)a[1], (mode_t)a[2]);
    case SYS_creat: return emulate_open(call, AT_FDCWD, a[0], O_CREAT | O_WRONLY | O_TRUNC, (mode_t)a[1]);
    case SYS_mkdir: return emulate_create(call, AT_FDCWD, a[0], (mode_t)a[1], 0, true);
    case SYS_mknod: return emulate_create(call, AT_FDCWD, a[0], (mode_t)a[1], (dev_t)a[2], false);
    case SYS_rmdir: return emulate_unlink(call, AT_FDCWD, a[0], AT_REMOVEDIR);
    case SYS_unlink: return emulate_unlink(call, AT_FDCWD, a[0], 0);
    case SYS_rename: return emulate_rename(call, AT_FDCWD, a[0], AT_FDCWD, a[1], 0);
    case SYS_link: return emulate_link(call, AT_FDCWD, a[0], AT_FDCWD, a[1], 0);
    case SYS_symlink: return emulate_symlink(call, a[0], AT_FDCWD, a[1]);
    case SYS_chmod: return emulate_chmod(call, AT_FDCWD, a[0], (mode_t)a[1], 0);
    case SYS_chown: return emulate_chown(call, AT_FDCWD, a[0], (uid_t)a[1], (gid_t)a[2], 0);
    case SYS_lchown: return emulate_chown(call, AT_FDCWD, a[0], (uid_t)a[1], (gid_t)a[2], AT_SYMLINK_NOFOLLOW);
    case SYS_utime: return emulate_utimes(call, AT_FDCWD, a[0], a[1], SECONDS, 0);
    case SYS_utimes: return emulate_utimes(call, AT_FDCWD, a[0], a[1], TIMEVALS, 0);
    case SYS_futimesat: return emulate_utimes(call, (int)a[0], a[1], a[2], TIMEVALS, 0);
#endif
    default: return -ENOSYS;
  }
}

void supervision_handle(int listener) {
  struct seccomp_notif request = {0};
  if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &request)) return; /* the caller died meanwhile */
  struct supervised_call call = {listener, request.id, (pid_t)request.pid, request.data.args};
  struct seccomp_notif_resp answer = {.id = request.id};
  if (tracing && is_only_traced(&call, request.data.nr)) answer.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
  else if (request.data.nr == SYS_umask) {
    /* The call has no pointer argument, so it may continue. */
    invalidate_umask_cache();
    answer.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
  } else if (request.data.nr == SYS_mmap) {
    answer.error = check_shared_mapping(&call, (size_t)call.args[1], (int)call.args[3], (int)call.args[4]);
    if (!answer.error) answer.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
  } else if (request.data.nr == SYS_sendto || (request.data.nr == SYS_connect && !supervises_sockets())) {
    bool sends = request.data.nr == SYS_sendto;
    answer.error = check_connect(&call, call.args[sends ? 4 : 1], call.args[sends ? 5 : 2]);
    if (!answer.error) answer.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
  } else if ((answer.error = dispatch(&call, request.data.nr)) == REPLIED) return;
  ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &answer);
}

/* Blocking workers; the oldest entry is overwritten first. If that worker still runs, it counts as an orphan from then on. */
enum { MAX_WORKERS = 256 };
static struct {
  pid_t pid, caller;
  bool running;
} workers[MAX_WORKERS];
static size_t worker_count;

pid_t fork_blocking_worker(pid_t caller) {
  pid_t pid = fork();
  if (pid <= 0) return pid;
  size_t slot = worker_count++ % MAX_WORKERS;
  workers[slot].pid = pid;
  workers[slot].caller = caller;
  workers[slot].running = true;
  return pid;
}

/* The latest first: process ids are used again. */
static int worker_slot(pid_t pid) {
  for (size_t i = worker_count; i > 0 && i + MAX_WORKERS > worker_count; i--)
    if (workers[(i - 1) % MAX_WORKERS].pid == pid) return (int)((i - 1) % MAX_WORKERS);
  return -1;
}

pid_t caller_of_worker(pid_t pid) {
  int slot = worker_slot(pid);
  return slot < 0 ? 0 : workers[slot].caller;
}

bool is_running_worker(pid_t pid) {
  int slot = worker_slot(pid);
  return slot >= 0 && workers[slot].running;
}

void worker_exited(pid_t pid) {
  int slot = worker_slot(pid);
  if (slot >= 0) workers[slot].running = false;
}
