#include "calls.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>

/*
 * The kernel stops each call that changes a name or opens a file for writing and passes it to us. We copy the
 * path, resolve it ourselves, judge the place that it leads to, and make the call in the caller's stead.
 *
 * SECURITY: no call is ever let through to run by itself ("continue"): another thread of the guest could exchange
 * the path between our look and the kernel's. What was judged is what is done.
 */

#ifndef SYS_fchmodat2
#define SYS_fchmodat2 452
#endif
#ifndef SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
#define SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV (1UL << 5)
#endif
#ifndef SECCOMP_IOCTL_NOTIF_SET_FLAGS
#define SECCOMP_IOCTL_NOTIF_SET_FLAGS SECCOMP_IOW(4, __u64)
#define SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP 1
#endif

enum { WRITE_INTENT = O_WRONLY | O_RDWR | O_CREAT | O_TRUNC };

static const int SUPERVISED_CALLS[] = {
    SYS_mkdirat, SYS_unlinkat, SYS_renameat2, SYS_linkat, SYS_symlinkat, SYS_mknodat, SYS_truncate,
    SYS_fchmod,  SYS_fchmodat, SYS_fchmodat2, SYS_umask, SYS_bind, SYS_fchown, SYS_fchownat, SYS_utimensat,
    SYS_setxattr, SYS_lsetxattr, SYS_fsetxattr, SYS_removexattr, SYS_lremovexattr, SYS_fremovexattr,
#ifdef SYS_renameat
    SYS_renameat,
#endif
#ifdef SYS_open
    SYS_creat,   SYS_mkdir,    SYS_rmdir,     SYS_unlink,  SYS_rename,    SYS_link,    SYS_symlink,
    SYS_mknod,   SYS_chmod,    SYS_chown,     SYS_lchown,  SYS_utime,     SYS_utimes,  SYS_futimesat,
#endif
};

/* Calls whose meaning lies in memory where a filter cannot see it, or that are too new to be needed; callers fall back. */
static const int UNSUPPORTED_CALLS[] = {
    SYS_openat2, 463 /* setxattrat */, 466 /* removexattrat */, 469 /* file_setattr */,
};

/*
 * SECURITY: a Landlock ruleset that a program makes for itself would not hold here, because we open files in its stead.
 * It is told so, as on a kernel without Landlock.
 */
enum { LANDLOCK_CREATE_RULESET = 444 };

/* Change what a file is, or make names, through a descriptor that was opened for reading. */
static const unsigned DENIED_IOCTLS[] = {
    0x40086602, 0x40046602, /* FS_IOC_SETFLAGS, of both widths */
    0x401c5820,             /* FS_IOC_FSSETXATTR */
    0x40087602, 0x40047602, /* FS_IOC_SETVERSION */
    0x40086604,             /* EXT4_IOC_SETVERSION */
    0x00006609,             /* EXT4_IOC_MIGRATE */
    0x40806685,             /* FS_IOC_ENABLE_VERITY */
    0x800c6613,             /* FS_IOC_SET_ENCRYPTION_POLICY */
    0x40047211,             /* FAT_IOCTL_SET_ATTRIBUTES */
    0x40186f04,             /* OCFS2_IOC_REFLINK */
};
/* Of btrfs every request but the three that copy between open files: some make subvolumes, which are names. */
static const unsigned ALLOWED_BTRFS_IOCTLS[] = {0x40049409, 0x4020940d, 0xc0189436};
static const unsigned DENIED_IOCTL_TYPES[] = {0x9400 /* btrfs */, 0xbc00 /* bcachefs */};

#define ARGUMENT(n) ((unsigned)offsetof(struct seccomp_data, args) + (n) * 8)

static void notify_open(struct sock_filter *code, int *at, int call, int flags_argument) {
  const struct sock_filter block[] = {
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)call, 0, 4),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, ARGUMENT((unsigned)flags_argument)),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, WRITE_INTENT, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  memcpy(code + *at, block, sizeof block);
  *at += (int)(sizeof block / sizeof *block);
}

static void notify_call(struct sock_filter *code, int *at, int call) {
  code[(*at)++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)call, 0, 1);
  code[(*at)++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF);
}

/* A connected socket sends without an address, and often: only a call that names one is of interest. */
static void notify_sendto(struct sock_filter *code, int *at) {
  const struct sock_filter block[] = {
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sendto, 0, 6),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, ARGUMENT(4)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 2),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, ARGUMENT(4) + 4),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  memcpy(code + *at, block, sizeof block);
  *at += (int)(sizeof block / sizeof *block);
}

static void emit(struct sock_filter *code, int *at, unsigned short what, unsigned value, unsigned char if_true, unsigned char if_false) {
  code[(*at)++] = (struct sock_filter)BPF_JUMP(what, value, if_true, if_false);
}

static void return_when_equal(struct sock_filter *code, int *at, unsigned value, unsigned answer) {
  emit(code, at, BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1);
  emit(code, at, BPF_RET | BPF_K, answer, 0, 0);
}

static void add_ioctl_rules(struct sock_filter *code, int *at) {
  emit(code, at, BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 0, 0);
  int skip = *at - 1;
  emit(code, at, BPF_LD | BPF_W | BPF_ABS, ARGUMENT(1), 0, 0);
  for (size_t i = 0; i < sizeof DENIED_IOCTLS / sizeof *DENIED_IOCTLS; i++)
    return_when_equal(code, at, DENIED_IOCTLS[i], SECCOMP_RET_ERRNO | EOPNOTSUPP);
  for (size_t i = 0; i < sizeof ALLOWED_BTRFS_IOCTLS / sizeof *ALLOWED_BTRFS_IOCTLS; i++)
    return_when_equal(code, at, ALLOWED_BTRFS_IOCTLS[i], SECCOMP_RET_ALLOW);
  emit(code, at, BPF_ALU | BPF_AND | BPF_K, 0xff00, 0, 0);
  for (size_t i = 0; i < sizeof DENIED_IOCTL_TYPES / sizeof *DENIED_IOCTL_TYPES; i++)
    return_when_equal(code, at, DENIED_IOCTL_TYPES[i], SECCOMP_RET_ERRNO | ENOTTY);
  emit(code, at, BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0, 0);
  code[skip].jf = (unsigned char)(*at - skip - 1);
}

static void add_file_rules(struct sock_filter *code, int *at) {
  notify_open(code, at, SYS_openat, 2);
#ifdef SYS_open
  notify_open(code, at, SYS_open, 1);
#endif
  for (size_t i = 0; i < sizeof SUPERVISED_CALLS / sizeof *SUPERVISED_CALLS; i++) notify_call(code, at, SUPERVISED_CALLS[i]);
  for (size_t i = 0; i < sizeof UNSUPPORTED_CALLS / sizeof *UNSUPPORTED_CALLS; i++)
    return_when_equal(code, at, (unsigned)UNSUPPORTED_CALLS[i], SECCOMP_RET_ERRNO | ENOSYS);
  return_when_equal(code, at, LANDLOCK_CREATE_RULESET, SECCOMP_RET_ERRNO | EOPNOTSUPP);
  add_ioctl_rules(code, at);
}

/* Shared mappings (MAP_SHARED has bit 0, MAP_PRIVATE has not), and files that are only memory. */
static void add_shared_memory_rules(struct sock_filter *code, int *at) {
  const struct sock_filter block[] = {
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap, 0, 4),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, ARGUMENT(3)),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, 1, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  memcpy(code + *at, block, sizeof block);
  *at += (int)(sizeof block / sizeof *block);
  notify_call(code, at, SYS_memfd_create);
  return_when_equal(code, at, 447 /* memfd_secret */, SECCOMP_RET_ERRNO | ENOSYS);
}

/* Reading and starting are none of the guard's business, but whoever learns wants to hear of them. */
static void add_trace_rules(struct sock_filter *code, int *at) {
  notify_call(code, at, SYS_openat);
  notify_call(code, at, SYS_execve);
  notify_call(code, at, SYS_execveat);
#ifdef SYS_open
  notify_call(code, at, SYS_open);
#endif
}

/* Whether the call was only to be noted. */
static bool is_only_traced(const struct supervised_call *call, int number) {
  const __u64 *a = call->args;
  bool writes = false;
  if (number == SYS_openat) trace_access(call, (writes = a[2] & WRITE_INTENT) ? 'w' : 'r', (int)a[0], a[1]);
#ifdef SYS_open
  else if (number == SYS_open) trace_access(call, (writes = a[1] & WRITE_INTENT) ? 'w' : 'r', AT_FDCWD, a[0]);
#endif
  else if (number == SYS_execve) trace_access(call, 'x', AT_FDCWD, a[0]);
  else if (number == SYS_execveat) trace_access(call, 'x', (int)a[0], a[1]);
  else return false;
  return !writes;
}

/* Called in the child, before exec: it and everything it starts is watched. Returns the listener. */
int supervision_install(void) {
  struct sock_filter code[512];
  int at = 0;
  code[at++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
  if (tracing) add_trace_rules(code, &at);
  if (network_guarantee) notify_call(code, &at, SYS_connect), notify_sendto(code, &at);
  if (count_shared_memory) add_shared_memory_rules(code, &at);
  if (protection.mounts.count > 0) add_file_rules(code, &at);
  code[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  struct sock_fprog program = {.len = (unsigned short)at, .filter = code};
  unsigned flags = SECCOMP_FILTER_FLAG_NEW_LISTENER | SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
  long fd = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
  if (fd < 0 && errno == EINVAL) fd = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
  if (fd >= 0) ioctl((int)fd, SECCOMP_IOCTL_NOTIF_SET_FLAGS, SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP);
  return (int)fd;
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
    /* Harmless and without a pointer: the one call that runs by itself. We only have to forget what we knew. */
    invalidate_umask_cache();
    answer.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
  } else if (request.data.nr == SYS_mmap) {
    answer.error = check_shared_mapping(&call, (size_t)call.args[1], (int)call.args[3], (int)call.args[4]);
    if (!answer.error) answer.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
  } else if (request.data.nr == SYS_connect || request.data.nr == SYS_sendto) {
    bool sends = request.data.nr == SYS_sendto;
    answer.error = check_connect(&call, call.args[sends ? 4 : 1], call.args[sends ? 5 : 2]);
    if (!answer.error) answer.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
  } else if ((answer.error = dispatch(&call, request.data.nr)) == REPLIED) return;
  ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &answer);
}

/* Copies of us that wait; the oldest is forgotten first, since it will be gone by then. */
enum { MAX_WORKERS = 256 };
static pid_t workers[MAX_WORKERS];
static unsigned worker_count;

pid_t fork_blocking_worker(void) {
  pid_t pid = fork();
  if (pid > 0) workers[worker_count++ % MAX_WORKERS] = pid;
  return pid;
}

bool is_blocking_worker(pid_t pid) {
  for (size_t i = 0; i < MAX_WORKERS; i++)
    if (workers[i] == pid) return true;
  return false;
}
