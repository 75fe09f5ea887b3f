#include "common/channel.h"
#include "files/files.h"
#include "init/init.h"
#include "launch/launch.h"
#include "machine/machine.h"
#include "sudo/sudo.h"

#include <linux/landlock.h>

/* In which namespaces a process is; for images without programs. */
static int show_namespaces(void) {
  static const char *const LINKS[] = {"/proc/self/ns/pid", "/proc/self/ns/mnt", "/proc/self/ns/ipc",
                                      "/proc/self/ns/uts", "/proc/self/ns/net"};
  for (size_t i = 0; i < LENGTH(LINKS); i++) {
    char id[64];
    ssize_t length = readlink(LINKS[i], id, sizeof id);
    if (length < 0) return 1;
    printf("%.*s\n", (int)length, id);
  }
  return 0;
}

/* Selects the role; guest/agent/README.md lists them. */
int main(int argc, char **argv) {
  /* The kernel of a virtual machine starts us under this name and may add arguments from its command line. */
  if (getpid() == 1 && !strcmp(argv[0], "/init")) machine_main();
  const char *slash = strrchr(argv[0], '/');
  if (!strcmp(slash ? slash + 1 : argv[0], "sudo")) return sudo_main(argc, argv);
  if (argc == 2 && !strcmp(argv[1], "launch")) launch_main();
  if (argc == 2 && !strcmp(argv[1], "fork-server")) fork_server_main();
  if (argc == 5 && !strcmp(argv[1], "init")) {
    control_fd = atoi(argv[4]);
    init_main(atoi(argv[2]), atoi(argv[3]));
  }
  if (argc == 2 && !strcmp(argv[1], "container")) container_main();
  if (argc == 3 && !strcmp(argv[1], "pod")) pod_main(argv[2]);
  if (argc == 3 && !strcmp(argv[1], "pod-again")) pod_again_main(argv[2]);
  if (argc >= 5 && !strcmp(argv[1], "pod-install")) return pod_install(argv + 2);
  if (argc == 3 && !strcmp(argv[1], "pod-fill-file")) return pod_fill_file(argv[2]);
  if (argc == 3 && !strcmp(argv[1], "pod-unpack")) return unpack_files(argv + 1);
  if (argc == 2 && !strcmp(argv[1], "pod-kernel")) return pod_kernel();
  if (argc == 3 && !strcmp(argv[1], "pod-reach")) return pod_reach(atoi(argv[2]));
  if (argc == 4 && !strcmp(argv[1], "container-root")) container_root_main(argv[2], argv[3]);
  if (argc > 2 && !strcmp(argv[1], "run-as")) run_as_main(argv + 2);
#ifdef RINGFENCE_TEST
  if (argc == 4 && !strcmp(argv[1], "unconfined")) {
    control_fd = atoi(argv[3]);
    serve_unconfined(atoi(argv[2]));
  }
#endif
  if (argc == 3 && !strcmp(argv[1], "overlay-changes")) return list_overlay_changes(argv[2]);
  if (argc == 3 && !strcmp(argv[1], "disk-extents")) return list_disk_extents(argv[2]);
  if (argc == 2 && !strcmp(argv[1], "landlock")) {
    /* Landlock's ABI version of this kernel, or -1; used by `doctor`. */
    printf("%ld\n", syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION));
    return 0;
  }
  if (argc == 2 && !strcmp(argv[1], "namespaces")) return show_namespaces();
  if (argc == 2 && !strcmp(argv[1], "version")) {
    puts("ringfence-agent 1");
    return 0;
  }
  fputs("ringfence-agent is started by ringfence, not by hand\n", stderr);
  return 2;
}
