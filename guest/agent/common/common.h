/*
 * What every part of the agent uses: system headers, lists of strings, the monotonic clock, and how to give up.
 */
#ifndef RINGFENCE_COMMON_H
#define RINGFENCE_COMMON_H

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

#include "common/protocol.h"

/* The number of elements of an array. */
#define LENGTH(array) (sizeof(array) / sizeof *(array))

/* A list of strings that grows. It does not own the strings. */
struct strings {
  char **items;
  size_t count;
  size_t room;
};

void strings_add(struct strings *list, const char *item);
/* The items with a terminating NULL, as exec wants them. */
char **strings_vector(struct strings *list);

/* Milliseconds on the monotonic clock. */
int64_t monotonic_ms(void);

/*
 * Reads the beginning of a small file, such as one in /proc, as text. Returns its length, or -1; the text is always
 * NUL-terminated.
 */
ssize_t read_text_at(int directory, const char *path, char *text, size_t size);
/* Writes to a file that exists (in /proc or a cgroup). Ends the agent when that fails. */
void write_text(const char *path, const char *text);

/*
 * Configurations are sequences of NUL-terminated strings: the name of a field, then its arguments. The tables of protocol.h
 * say how many each field has.
 */
struct field {
  const char *name;
  size_t arity;
};
enum { MAX_ARITY = 5 };
#define FIELD_ROW(name, arity) {name, arity},

/* NULL when the table has no such field. */
const struct field *find_field(const struct field *fields, size_t count, const char *name);
/* The next string of a buffer. Ends the agent when there is none. */
const char *next_string(char **at, const char *end);
/* Reads the arguments of a field. Ends the agent when the table has no such field. */
void read_arguments(const struct field *fields, size_t count, const char *name, char **at, const char *end,
                    const char *arguments[MAX_ARITY]);

/*
 * Reports why the sandbox could not be set up and exits: a command never runs in a partial sandbox. In a child of PID 1
 * the reason goes to `child_socket`, otherwise to the host.
 */
_Noreturn void die(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
