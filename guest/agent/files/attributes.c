#include "files/attributes.h"

#include <sys/xattr.h>

/* Where E2B keeps the metadata of a file, so that programs for its sandboxes find it. */
static const char PREFIX[] = "user.e2b.";
enum { PREFIX_LENGTH = sizeof PREFIX - 1, NAMES_SIZE = 8192 };

/* SECURITY: commands set attributes too; whatever the host could read in two ways is left out. */
static bool is_plain(const char *text, size_t length) {
  for (size_t i = 0; i < length; i++)
    if (text[i] < 0x20 || text[i] > 0x7e) return false;
  return true;
}

void read_attributes(const char *path, char text[ATTRIBUTES_SIZE]) {
  static char names[NAMES_SIZE];
  size_t used = 0;
  text[0] = 0;
  ssize_t length = llistxattr(path, names, sizeof names);
  for (char *name = names; length > 0 && name < names + length; name += strlen(name) + 1) {
    char value[ATTRIBUTES_SIZE];
    if (strncmp(name, PREFIX, PREFIX_LENGTH) || !name[PREFIX_LENGTH]) continue;
    ssize_t size = lgetxattr(path, name, value, sizeof value - 1);
    if (size < 0 || !is_plain(value, (size_t)size) || !is_plain(name, strlen(name))) continue;
    value[size] = 0;
    size_t room = ATTRIBUTES_SIZE - used;
    int added = snprintf(text + used, room, "%s%c%s%c", name + PREFIX_LENGTH, ATTRIBUTE_END, value, ATTRIBUTE_END);
    if ((size_t)added >= room) break;
    used += (size_t)added;
  }
  text[used] = 0;
}

static void remove_attributes(int fd) {
  static char names[NAMES_SIZE];
  ssize_t length = flistxattr(fd, names, sizeof names);
  for (char *name = names; length > 0 && name < names + length; name += strlen(name) + 1)
    if (!strncmp(name, PREFIX, PREFIX_LENGTH)) fremovexattr(fd, name);
}

bool replace_attributes(int fd, const char *text) {
  remove_attributes(fd);
  while (*text) {
    char name[256];
    size_t name_length = strcspn(text, (char[]){ATTRIBUTE_END, 0});
    if (!text[name_length] || PREFIX_LENGTH + name_length >= sizeof name) return errno = EINVAL, false;
    snprintf(name, sizeof name, "%s%.*s", PREFIX, (int)name_length, text);
    const char *value = text + name_length + 1;
    size_t length = strcspn(value, (char[]){ATTRIBUTE_END, 0});
    if (!value[length]) return errno = EINVAL, false;
    if (fsetxattr(fd, name, value, length, 0)) return false;
    text = value + length + 1;
  }
  return true;
}
