/* The tar format: ustar, with pax records for what does not fit into it. */
#ifndef RINGFENCE_TAR_H
#define RINGFENCE_TAR_H

#include "files/attributes.h"

/* MAX_PAX: two paths, a size and the attributes of a file, each with its key. */
enum { BLOCK = 512, MAX_PAX = PATH_MAX * 2 + ATTRIBUTES_SIZE + 128 };

/* The pax record with the metadata of a file (attributes.h). */
#define TAR_ATTRIBUTES "RINGFENCE.attributes"

struct header {
  char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], sum[8], type, link[100];
  char magic[6], version[2], user[32], group[32], major[8], minor[8], prefix[155], rest[12];
};

_Static_assert(sizeof(struct header) == BLOCK, "a tar header is one block");

/* Reports errno and a path on standard error and exits. */
_Noreturn void tar_fail(const char *what);

#endif
