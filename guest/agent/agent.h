/*
 * The guest agent: one static program with two roles.
 *
 *   launch  runs on the host, just before bubblewrap: joins cgroups, opens the judged sources by inode,
 *           hands everything over by descriptor (so that no argument list shows a command or a secret).
 *   init    is PID 1 of the sandbox: finishes the mounts, drops every privilege, installs the fences, starts the
 *           command, decides on each change of the file system that the kernel passes up, reaps, reports.
 *
 * Both speak to the host over one control socket in frames: type (1 byte), length (4 bytes, little endian), payload.
 */
#ifndef RINGFENCE_AGENT_H
#define RINGFENCE_AGENT_H

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

/* A list of strings that grows. */
struct strings {
  char **items;
  size_t count;
  size_t room;
};

void strings_add(struct strings *list, const char *item);
/* Adds the NULL that exec wants. */
char **strings_vector(struct strings *list);
/* On the clock that nobody can set. */
int64_t milliseconds(void);

/* report.c: frames to and from the host. */
enum frame_type {
  FRAME_ERROR = 'E',     /* text: set-up failed, nothing ran */
  FRAME_READY = 'R',     /* text: the effective layers, one key=value a line */
  FRAME_VIOLATION = 'V', /* guarantee NUL details */
  FRAME_LIMIT = 'L',     /* text: the limit that stopped the command */
  FRAME_EXIT = 'X',      /* kind (0 exited, 1 signaled), code */
  FRAME_GO = 'G',        /* from the host: the command may start */
  FRAME_SIGNAL = 'S',    /* from the host: signal number */
};

extern int control_fd;
void report(enum frame_type type, const void *payload, size_t length);
void report_violation(const char *guarantee, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Reports why the sandbox could not be set up and ends: nothing runs behind half a wall. */
_Noreturn void die(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* walk.c: path resolution that never follows what changed since it was looked at. */
#define MAX_LINKS 40

/* Where a path leads: a parent directory with a last name, or (whole) one object with no name of its own. */
struct place {
  int parent; /* O_PATH, or -1 when whole */
  char name[NAME_MAX + 1];
  int found;         /* O_PATH of the object itself, or -1 when it does not exist */
  bool must_be_dir;  /* the path ended in a slash */
  struct stat stat;  /* of found */
};

int open_beneath(int root, const char *path, int flags);
/* Returns 0 or -errno. `caller` is the thread whose /proc/self the path means. */
enum last_name { FOLLOW_LINK, KEEP_LINK, DO_NOT_LOOK };
int resolve(struct place *place, pid_t caller, int dirfd, const char *path, enum last_name last);
void release(struct place *place);
/* The path of an open descriptor as the sandbox sees it; false when it has none. */
bool path_of(int fd, char *buffer, size_t size);
void walk_setup(void);
extern int proc_fd;

/* protect.c: which names may not be changed. */
struct protection {
  struct strings guarded; /* the writable mounts that the names count below */
  struct strings roots;
  struct strings inner;
  struct strings names;
  struct strings except;
  struct strings pinned; /* full paths: where a linked repository really lies */
};

extern struct protection protection;
/* Each takes a full path; what is below no guarded mount is never protected. */
bool is_protected(const char *path);
/* Moving or linking something to this path would carry protected names along. */
bool leads_to_protected(const char *path);
bool is_exempt(const char *path);

/* fence.c: privileges, mounts, Landlock, seccomp. */
void make_readonly(const char *path);
void hide_path(const char *path);
void mask_path(const char *path, const char *dev, const char *ino);
void move_mount_to(const char *staged, const char *target, const char *mode);
void forbid_user_namespaces(bool but_one);
void become_user(const char *uid, const char *gid);
void drop_privileges(void);
int restrict_files(struct strings *writable, bool files);
void load_filter(int fd);
void describe_layers(int landlock, bool guarded);

/* guard.c: decides on changes that the kernel passes up to PID 1. */
int guard_install(void);
void guard_serve(int listener);

/* usage.c: ceilings that the kernel does not hold by itself on this host. */
struct ceilings {
  uint64_t memory_bytes;
  uint64_t disk_bytes;
  uint64_t processes;
  bool shared_tmp; /* /tmp is the host's and not ours to count */
  int tick; /* milliseconds between two looks */
};

extern struct ceilings ceilings;
void usage_note_write(int fd, const struct stat *stat, bool created);
void usage_note_entry(void);
/* The name of the limit that is passed, or NULL. */
const char *usage_exceeded(void);

_Noreturn void launch(void);
_Noreturn void init(int config, int filter);

#endif
