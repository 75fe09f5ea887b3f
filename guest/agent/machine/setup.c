#include "common/channel.h"
#include "files/files.h"
#include "init/init.h"
#include "machine/machine.h"

#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/wait.h>
#include <time.h>

/* Reads return 0 until the host has connected to the port. */
static void read_exactly(void *to, size_t length) {
  for (size_t got = 0; got < length;) {
    ssize_t more = read(control_fd, (char *)to + got, length - got);
    if (more > 0) got += (size_t)more;
    else if (more < 0 && errno != EINTR) reboot(RB_AUTOBOOT);
    else sleep_ms(5);
  }
}

unsigned copied_files_owner(void) { return machine.root ? machine.root + USER_UID : SANDBOX_UID; }

/* Copies files into a mount: a child unpacks the tar stream that the host sends, as the sandbox's user. */
static pid_t unpacker;
static int unpack_pipe = -1;

static void start_unpacking(unsigned number) {
  int pipes[2];
  char path[64];
  if (number >= machine.mount_count || pipe2(pipes, O_CLOEXEC)) die("cannot copy files: %s", strerror(errno));
  snprintf(path, sizeof path, "/data/%u", number);
  unpacker = fork();
  if (unpacker < 0) die("cannot copy files: %s", strerror(errno));
  if (unpacker == 0) {
    close(pipes[1]); /* or the child would never see the end of the stream */
    dup2(pipes[0], 0);
    dup2(open("/unpack-error", O_WRONLY | O_CREAT | O_TRUNC, 0600), 2);
    unsigned owner = copied_files_owner();
    if (setresgid(owner, owner, owner) || setresuid(owner, owner, owner)) _exit(1);
    _exit(run_builtin((char *[]){"unpack", path, NULL}));
  }
  close(pipes[0]);
  unpack_pipe = pipes[1];
}

static void finish_unpacking(void) {
  int status = 0;
  if (unpack_pipe >= 0) close(unpack_pipe);
  unpack_pipe = -1;
  if (unpacker > 0) waitpid(unpacker, &status, 0);
  unpacker = 0;
  if (!status) return;
  char why[200] = "";
  int fd = open("/unpack-error", O_RDONLY | O_CLOEXEC);
  if (fd < 0 || read(fd, why, sizeof why - 1) < 0) why[0] = 0;
  die("cannot copy the files: %s", why);
}

static void unpack(unsigned number, const char *bytes, size_t length) {
  if (unpack_pipe < 0) start_unpacking(number);
  while (length > 0) {
    ssize_t sent = write(unpack_pipe, bytes, length);
    if (sent <= 0) return finish_unpacking();
    bytes += sent;
    length -= (size_t)sent;
  }
}

/*
 * Later changes are recognized by a change time after this one, so wait until the coarse clock that stamps files moves
 * on.
 */
static void record_copy_time(void) {
  struct timespec now, then;
  if (!machine.mount_count) return;
  clock_gettime(CLOCK_REALTIME_COARSE, &then);
  do sleep_ms(1), clock_gettime(CLOCK_REALTIME_COARSE, &now);
  while (now.tv_sec == then.tv_sec && now.tv_nsec == then.tv_nsec);
  machine.files_copied_at = (long long)then.tv_sec * 1000000000 + then.tv_nsec;
}

static void add_mount(const char *const *arguments) {
  char path[64];
  if (machine.mount_count >= MAX_MOUNTS) die("too many mounts");
  struct machine_mount *entry = &machine.mounts[machine.mount_count];
  *entry = (struct machine_mount){arguments[0], arguments[1], arguments[2], arguments[3]};
  snprintf(path, sizeof path, "/data/%zu", machine.mount_count++);
  unsigned owner = copied_files_owner();
  if (mkdir(path, 0755) || chown(path, owner, owner)) die("%s: %s", entry->target, strerror(errno));
}

static void mount_disk(void) {
  mount_on(disk_device, "/data", "ext4", MS_NOSUID | MS_NODEV | MS_NOATIME, "noinit_itable");
  if (chmod("/data", 0711)) die("disk: %s", strerror(errno));
}

static void mount_inputs(void) { mount_on(inputs_device, "/inputs", "erofs", MS_RDONLY | MS_NOSUID | MS_NODEV, ""); }

static void add_pair(struct strings *list, const char *const *arguments) {
  strings_add(list, arguments[0]);
  strings_add(list, arguments[1]);
}

/* The disk belongs to the sandbox's root; copies of the host's files are not part of it. */
static void set_root(const char *first_id) {
  machine.root = (unsigned)strtoul(first_id, NULL, 10);
  if (machine.root < ID_COUNT) die("configuration: bad id %s", first_id);
  mount_on("data", "/data", "tmpfs", MS_NOSUID | MS_NODEV, "mode=0711,size=50%");
}

static const struct field FIELDS[] = {MACHINE_FIELDS(FIELD_ROW)};

static void parse_mounts(char *at, size_t length) {
  const char *end = at + length, *arguments[MAX_ARITY];
  while (at < end) {
    const char *name = next_string(&at, end);
    read_arguments(FIELDS, LENGTH(FIELDS), name, &at, end, arguments);
    if (!strcmp(name, "disk")) mount_disk();
    else if (!strcmp(name, "inputs")) mount_inputs();
    else if (!strcmp(name, "user")) machine.uid = arguments[0], machine.gid = arguments[1];
    else if (!strcmp(name, "limit")) add_pair(&machine.limits, arguments);
    else if (!strcmp(name, "file")) add_pair(&machine.files, arguments);
    else if (!strcmp(name, "root")) set_root(arguments[0]);
    else if (!strcmp(name, "first-file")) add_pair(&machine.first_files, arguments);
    else if (!strcmp(name, "own")) strings_add(&machine.own, arguments[0]);
    else if (!strcmp(name, "tmp")) machine.tmp = arguments[0];
    else if (!strcmp(name, "mount")) add_mount(arguments);
    else die("configuration: unknown field %s", name);
  }
}

/* SECURITY: these frames come from the host, before any command exists. */
static void handle_setup_frame(enum frame_type type, uint32_t id, char *payload, size_t length) {
  switch (type) {
    case FRAME_IDENTITY:
      apply_identity(payload, length);
      machine.has_identity = true;
      return send_frame(FRAME_RENEWED, 0, "", 0);
    case FRAME_CONFIGURE: machine.config = payload, machine.config_length = length; return;
    case FRAME_FILTER: machine.filter = filter_to_memfd(payload, length); return;
    case FRAME_EXPECT: return parse_mounts(payload, length);
    case FRAME_DATA: return unpack(id, payload, length);
    case FRAME_END: return finish_unpacking();
    default: die("configuration: unknown frame %c", type);
  }
}

static void read_setup_frames(void) {
  for (;;) {
    struct frame_header header;
    char *payload = read_setup_frame(&header, read_exactly);
    if (header.type == FRAME_GO) return free(payload);
    handle_setup_frame(header.type, header.id, payload, header.length);
    if (header.type == FRAME_DATA) free(payload);
  }
}

static void write_cgroup_limit(const char *name, const char *value) {
  char path[128];
  snprintf(path, sizeof path, "/cgroup/work/%s", name);
  write_text(path, value);
}

/* Called in the container while it is still root. */
void receive_setup(void) {
  send_frame(FRAME_WAITING, 0, "", 0);
  read_setup_frames();
  if (!machine.has_identity || !machine.config || machine.filter < 0 || (!machine.uid && !machine.root))
    die("configuration: incomplete");
  for (size_t i = 0; i + 1 < machine.limits.count; i += 2)
    write_cgroup_limit(machine.limits.items[i], machine.limits.items[i + 1]);
  record_copy_time();
}
