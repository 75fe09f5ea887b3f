/*
 * The metadata of a file, which a client of the host gave it: extended attributes below `user.e2b.`. As text, it is a
 * sequence of names and values, each followed by ATTRIBUTE_END.
 */
#ifndef RINGFENCE_ATTRIBUTES_H
#define RINGFENCE_ATTRIBUTES_H

#include "common/common.h"

enum { ATTRIBUTES_SIZE = 4096, ATTRIBUTE_END = 1 };

/* Reads the metadata of a file, without following a link. What does not fit, or is not plain ASCII, is left out. */
void read_attributes(const char *path, char text[ATTRIBUTES_SIZE]);

/* Replaces the metadata of an open file. Returns false with errno. */
bool replace_attributes(int fd, const char *text);

#endif
