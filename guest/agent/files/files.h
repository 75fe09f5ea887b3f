/*
 * Operations on files that need no program inside the sandbox. They run in a child that is confined like any command.
 * Results go to standard output; an error goes to standard error as the kernel's name for it and the path.
 */
#ifndef RINGFENCE_FILES_H
#define RINGFENCE_FILES_H

#include "common/common.h"

/* How much is read at once. */
enum { CHUNK = 64 * 1024 };

/* Runs the operation that argv names. Returns the exit code. */
int run_builtin(char **argv);

/* Writes all of it to standard output, or exits. */
void write_output(const void *data, size_t length);

/* tar_pack.c: a directory as a tar stream on standard output. */
int pack_files(char **argv);
/* The same, but fails at what it cannot read. */
int pack_whole(char **argv);
int pack_changes(char **argv);
/* tar_unpack.c: a tar stream on standard input into a directory. */
int unpack_files(char **argv);

#endif
