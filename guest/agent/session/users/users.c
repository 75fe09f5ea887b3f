#include "session/users/users.h"
#include "session/session.h"

#include <grp.h>
#include <sys/fsuid.h>
#include <sys/prctl.h>

/*
 * SECURITY: the files that are read here belong to the sandbox's root, who could start a program as any user anyway. Ids
 * outside of the range do not exist in the sandbox's user namespace.
 */
bool has_root_user;

static const char DEFAULT_USER[] = "user";

bool set_capabilities(uint64_t effective, uint64_t permitted) {
  struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  struct __user_cap_data_struct data[2] = {{(uint32_t)effective, (uint32_t)permitted, 0},
                                           {(uint32_t)(effective >> 32), (uint32_t)(permitted >> 32), 0}};
  return !syscall(SYS_capset, &header, data);
}

/* Splits a line at its colons. Returns the number of fields. */
static int split_line(char *line, char **fields, int most) {
  int count = 0;
  line[strcspn(line, "\n")] = 0;
  for (char *at = line; at && count < most; count++) fields[count] = strsep(&at, ":");
  return count;
}

static bool read_id(const char *text, unsigned *id) {
  char *end;
  unsigned long value = strtoul(text, &end, 10);
  *id = (unsigned)value;
  return *text >= '0' && *text <= '9' && !*end && value < ID_COUNT - 1;
}

static bool is_wanted(char **fields, const char *name) {
  return !strcmp(fields[0], name) || (*name >= '0' && *name <= '9' && !strcmp(fields[2], name));
}

/* Whether a comma separated list contains a name. */
static bool lists(const char *list, const char *name) {
  size_t length = strlen(name);
  for (const char *at = list; *at; at += strcspn(at, ","), at += *at == ',')
    if (!strncmp(at, name, length) && (at[length] == ',' || !at[length])) return true;
  return false;
}

static void add_groups(struct user *user) {
  FILE *file = fopen("/etc/group", "re");
  char line[4096], *fields[4];
  unsigned gid;
  while (file && user->group_count < MAX_GROUPS && fgets(line, sizeof line, file))
    if (split_line(line, fields, 4) == 4 && read_id(fields[2], &gid) && lists(fields[3], user->name))
      user->groups[user->group_count++] = gid;
  if (file) fclose(file);
}

static bool read_passwd(const char *name, struct user *user) {
  FILE *file = fopen("/etc/passwd", "re");
  char line[4096], *fields[7];
  bool found = false;
  while (file && !found && fgets(line, sizeof line, file)) {
    unsigned uid, gid;
    if (split_line(line, fields, 7) != 7 || !is_wanted(fields, name)) continue;
    if (!read_id(fields[2], &uid) || !read_id(fields[3], &gid)) continue;
    *user = (struct user){.uid = uid, .gid = gid, .groups = {gid}, .group_count = 1};
    snprintf(user->name, sizeof user->name, "%s", fields[0]);
    snprintf(user->home, sizeof user->home, "%s", *fields[5] ? fields[5] : "/");
    snprintf(user->shell, sizeof user->shell, "%s", *fields[6] ? fields[6] : "/bin/sh");
    found = true;
  }
  if (file) fclose(file);
  return found;
}

/* These two exist even if somebody broke /etc/passwd, so that the host can always repair the sandbox. */
static bool default_user(const char *name, struct user *user) {
  bool is_root = !strcmp(name, "root");
  if (!is_root && strcmp(name, DEFAULT_USER)) return false;
  unsigned id = is_root ? 0 : USER_UID;
  *user = (struct user){.uid = id, .gid = id, .groups = {id}, .group_count = 1};
  snprintf(user->name, sizeof user->name, "%s", name);
  snprintf(user->home, sizeof user->home, "%s", is_root ? "/root" : "/home/user");
  snprintf(user->shell, sizeof user->shell, "/bin/sh");
  return true;
}

/* A number without a line of its own, as images name users. */
static bool numbered_user(const char *name, struct user *user) {
  unsigned uid;
  if (!read_id(name, &uid)) return false;
  *user = (struct user){.uid = uid, .groups = {0}, .group_count = 1, .home = "/", .shell = "/bin/sh"};
  snprintf(user->name, sizeof user->name, "%u", uid);
  return true;
}

bool find_user(const char *name, struct user *user) {
  if (!read_passwd(name, user)) return default_user(name, user) || numbered_user(name, user);
  add_groups(user);
  return true;
}

/* A variable that the command set itself stays. */
static void set_default(struct command_spec *spec, const char *name, const char *value) {
  size_t length = strlen(name);
  for (size_t i = 0; i < spec->env.count; i++) {
    bool ours = false;
    if (strncmp(spec->env.items[i], name, length) || spec->env.items[i][length] != '=') continue;
    for (size_t n = 0; n < session->defaults->env.count; n++)
      ours |= session->defaults->env.items[n] == spec->env.items[i];
    if (!ours) return;
  }
  char *entry = malloc(length + strlen(value) + 2);
  if (!entry) die("out of memory");
  sprintf(entry, "%s=%s", name, value);
  set_variable(&spec->env, entry);
}

static void give_streams(const struct user *user) {
  for (int fd = 0; fd < 3; fd++) {
    struct stat stat;
    /* Otherwise nobody but root could open /dev/stdout or the terminal by name. */
    if (!fstat(fd, &stat) && (S_ISFIFO(stat.st_mode) || isatty(fd))) (void)!fchown(fd, user->uid, (gid_t)-1);
  }
}

void switch_to_user(const struct user *user, bool streams) {
  if (streams) give_streams(user);
  if (setgroups(user->group_count, user->groups) || setresgid(user->gid, user->gid, user->gid) ||
      setresuid(user->uid, user->uid, user->uid))
    die("cannot become the user %s: %s", user->name, strerror(errno));
  uint64_t kept = user->uid == 0 ? ROOT_CAPABILITIES : 0;
  if (!set_capabilities(kept, kept)) die("capset: %s", strerror(errno));
}

/* File operations act with root's rights, and what they create belongs to the owner. */
static void set_owner(const char *name) {
  struct user owner;
  if (!find_user(name, &owner)) die("there is no user %s in the sandbox", name);
  setfsgid(owner.gid);
  setfsuid(owner.uid);
  /* The kernel took the rights over files away with the user. */
  if (!set_capabilities(ROOT_CAPABILITIES, ROOT_CAPABILITIES)) die("capset: %s", strerror(errno));
}

void become_user(struct command_spec *spec) {
  struct user user;
  const char *name = spec->user ? spec->user : DEFAULT_USER;
  if (!find_user(name, &user)) die("there is no user %s in the sandbox", name);
  if (spec->user && session) {
    set_default(spec, "HOME", user.home);
    set_default(spec, "USER", user.name);
    set_default(spec, "LOGNAME", user.name);
    set_default(spec, "SHELL", user.shell);
    const char *start = access(user.home, X_OK) ? "/" : user.home;
    if (spec->cwd == session->defaults->cwd && !(spec->cwd = strdup(start))) die("out of memory");
  }
  switch_to_user(&user, !spec->is_sudo || spec->columns);
  if (spec->builtin && spec->owner && user.uid == 0) set_owner(spec->owner);
}
