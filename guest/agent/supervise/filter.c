#include "limits/limits.h"
#include "supervise/protected_paths.h"
#include "supervise/supervise.h"
#include "supervise/unix_sockets.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/ioctl.h>

/*
 * The seccomp filter that decides which calls are passed to PID 1: those that change a name or open a file for
 * writing, and others where the configuration needs them.
 *
 * SECURITY: a call with a path never continues in the kernel, because another thread could replace the path after our
 * check. PID 1 makes the call itself on what it checked.
 */

#ifndef SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
#define SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV (1UL << 5)
#endif
#ifndef SECCOMP_IOCTL_NOTIF_SET_FLAGS
#define SECCOMP_IOCTL_NOTIF_SET_FLAGS SECCOMP_IOW(4, __u64)
#define SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP 1
#endif

static const int SUPERVISED_CALLS[] = {
    SYS_mkdirat,   SYS_unlinkat, SYS_renameat2, SYS_linkat,    SYS_symlinkat,   SYS_mknodat,      SYS_truncate,
    SYS_fchmod,    SYS_fchmodat, SYS_fchmodat2, SYS_umask,     SYS_bind,        SYS_fchown,       SYS_fchownat,
    SYS_utimensat, SYS_setxattr, SYS_lsetxattr, SYS_fsetxattr, SYS_removexattr, SYS_lremovexattr, SYS_fremovexattr,
#ifdef SYS_renameat
    SYS_renameat,
#endif
#ifdef SYS_open
    SYS_creat,     SYS_mkdir,    SYS_rmdir,     SYS_unlink,    SYS_rename,      SYS_link,         SYS_symlink,
    SYS_mknod,     SYS_chmod,    SYS_chown,     SYS_lchown,    SYS_utime,       SYS_utimes,       SYS_futimesat,
#endif
};

/*
 * Calls with arguments in memory that a filter cannot read, or too new to be needed; callers fall back to older ones.
 */
static const int UNSUPPORTED_CALLS[] = {
    SYS_openat2,
    463 /* setxattrat */,
    466 /* removexattrat */,
    469 /* file_setattr */,
};

/*
 * SECURITY: a Landlock ruleset that a program creates for itself would have no effect on files that PID 1 opens for
 * it. The error is the one of a kernel without Landlock.
 */
enum { LANDLOCK_CREATE_RULESET = 444 };

/* Requests that change a file or create names through a descriptor that is only open for reading. */
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
/*
 * btrfs and bcachefs: all requests are denied, because some create subvolumes, except for the three that copy between
 * open files.
 */
static const unsigned ALLOWED_BTRFS_IOCTLS[] = {0x40049409, 0x4020940d, 0xc0189436};
static const unsigned DENIED_IOCTL_TYPES[] = {0x9400 /* btrfs */, 0xbc00 /* bcachefs */};

#define ARGUMENT(n) ((unsigned)offsetof(struct seccomp_data, args) + (n)*8)

/* Calls that open a file are only of interest when it can be changed through the descriptor. */
static void notify_open(struct sock_filter *code, int *at, int call, int flags_argument) {
  const struct sock_filter block[] = {
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)call, 0, 4), /* another call: skip this block */
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, ARGUMENT((unsigned)flags_argument)),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, WRITE_INTENT, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF), /* any of the flags is set */
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  memcpy(code + *at, block, sizeof block);
  *at += (int)LENGTH(block);
}

static void notify_call(struct sock_filter *code, int *at, int call) {
  code[(*at)++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)call, 0, 1);
  code[(*at)++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF);
}

/* A connected socket sends without an address, and often; only calls with an address are reported. */
static void notify_sendto(struct sock_filter *code, int *at) {
  const struct sock_filter block[] = {
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sendto, 0, 6), /* another call: skip this block */
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, ARGUMENT(4)),       /* the address, low half */
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 2),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, ARGUMENT(4) + 4), /* high half */
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF), /* not NULL */
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  memcpy(code + *at, block, sizeof block);
  *at += (int)LENGTH(block);
}

static void emit(struct sock_filter *code, int *at, unsigned short what, unsigned value, unsigned char if_true,
                 unsigned char if_false) {
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
  for (size_t i = 0; i < LENGTH(DENIED_IOCTLS); i++)
    return_when_equal(code, at, DENIED_IOCTLS[i], SECCOMP_RET_ERRNO | EOPNOTSUPP);
  for (size_t i = 0; i < LENGTH(ALLOWED_BTRFS_IOCTLS); i++)
    return_when_equal(code, at, ALLOWED_BTRFS_IOCTLS[i], SECCOMP_RET_ALLOW);
  emit(code, at, BPF_ALU | BPF_AND | BPF_K, 0xff00, 0, 0);
  for (size_t i = 0; i < LENGTH(DENIED_IOCTL_TYPES); i++)
    return_when_equal(code, at, DENIED_IOCTL_TYPES[i], SECCOMP_RET_ERRNO | ENOTTY);
  emit(code, at, BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0, 0);
  code[skip].jf = (unsigned char)(*at - skip - 1);
}

static void add_file_rules(struct sock_filter *code, int *at) {
  notify_open(code, at, SYS_openat, 2);
#ifdef SYS_open
  notify_open(code, at, SYS_open, 1);
#endif
  for (size_t i = 0; i < LENGTH(SUPERVISED_CALLS); i++)
    if (SUPERVISED_CALLS[i] != SYS_bind || !free_bind) notify_call(code, at, SUPERVISED_CALLS[i]);
  for (size_t i = 0; i < LENGTH(UNSUPPORTED_CALLS); i++)
    return_when_equal(code, at, (unsigned)UNSUPPORTED_CALLS[i], SECCOMP_RET_ERRNO | ENOSYS);
  return_when_equal(code, at, LANDLOCK_CREATE_RULESET, SECCOMP_RET_ERRNO | EOPNOTSUPP);
  add_ioctl_rules(code, at);
}

/* Shared mappings (MAP_SHARED sets bit 0, MAP_PRIVATE does not) and memfds. */
static void add_shared_memory_rules(struct sock_filter *code, int *at) {
  const struct sock_filter block[] = {
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap, 0, 4), /* another call: skip this block */
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, ARGUMENT(3)),     /* flags */
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, 1, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF), /* shared */
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  memcpy(code + *at, block, sizeof block);
  *at += (int)LENGTH(block);
  notify_call(code, at, SYS_memfd_create);
  return_when_equal(code, at, 447 /* memfd_secret */, SECCOMP_RET_ERRNO | ENOSYS);
}

/*
 * SECURITY: a datagram names its receiver in memory that a filter cannot read, so there are no Unix datagram sockets.
 * The kernel takes SOCK_RAW for SOCK_DGRAM here.
 */
static void refuse_unix_datagrams(struct sock_filter *code, int *at, int call) {
  const struct sock_filter block[] = {
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)call, 0, 8), /* another call: skip this block */
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, ARGUMENT(0)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_UNIX, 0, 5),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, ARGUMENT(1)),
      BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0xf), /* without SOCK_CLOEXEC and SOCK_NONBLOCK */
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SOCK_DGRAM, 1, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SOCK_RAW, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EACCES),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  memcpy(code + *at, block, sizeof block);
  *at += (int)LENGTH(block);
}

static void add_socket_rules(struct sock_filter *code, int *at) {
  notify_call(code, at, SYS_connect);
  notify_call(code, at, SYS_bind);
  refuse_unix_datagrams(code, at, SYS_socket);
  refuse_unix_datagrams(code, at, SYS_socketpair);
}

/* Reading and executing need no check, but tracing reports them. */
static void add_trace_rules(struct sock_filter *code, int *at) {
  notify_call(code, at, SYS_openat);
  notify_call(code, at, SYS_execve);
  notify_call(code, at, SYS_execveat);
#ifdef SYS_open
  notify_call(code, at, SYS_open);
#endif
}

int supervision_install(void) {
  struct sock_filter code[512];
  int at = 0;
  code[at++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
  if (tracing) add_trace_rules(code, &at);
  if (supervises_sockets()) add_socket_rules(code, &at);
  if (network_guarantee) notify_call(code, &at, SYS_connect), notify_sendto(code, &at);
  if (count_shared_memory) add_shared_memory_rules(code, &at);
  if (protection.mounts.count > 0) add_file_rules(code, &at);
  code[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  struct sock_fprog program = {.len = (unsigned short)at, .filter = code};
  unsigned flags = SECCOMP_FILTER_FLAG_NEW_LISTENER | SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
  long fd = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
  if (fd < 0 && errno == EINVAL)
    fd = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
  if (fd >= 0) ioctl((int)fd, SECCOMP_IOCTL_NOTIF_SET_FLAGS, SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP);
  return (int)fd;
}
