#include "sudo/sudo.h"

#include <getopt.h>

static const struct option LONG_OPTIONS[] = {
    {"user", required_argument, NULL, 'u'},
    {"login", no_argument, NULL, 'i'},
    {"shell", no_argument, NULL, 's'},
    {"preserve-env", optional_argument, NULL, 'E'},
    {"set-home", no_argument, NULL, 'H'},
    {"non-interactive", no_argument, NULL, 'n'},
    {"stdin", no_argument, NULL, 'S'},
    {"reset-timestamp", no_argument, NULL, 'k'},
    {"remove-timestamp", no_argument, NULL, 'K'},
    {"validate", no_argument, NULL, 'v'},
    {"list", no_argument, NULL, 'l'},
    {"version", no_argument, NULL, 'V'},
    {"help", no_argument, NULL, 'h'},
    {"prompt", required_argument, NULL, 'p'},
    {"chdir", required_argument, NULL, 'D'},
    {"askpass", no_argument, NULL, 'A'},
    {"preserve-groups", no_argument, NULL, 'P'},
    {0},
};

static void print_help(void) {
  puts("usage: sudo [-EHinPS] [-u user] [-D directory] [VAR=value] [-i | -s | command [arguments]]\n"
       "Runs a command as root, or as another user of this sandbox. No password is needed.");
}

static bool is_assignment(const char *word) {
  size_t name = strcspn(word, "=");
  return name && word[name] && word[0] != '-' && !memchr(word, '/', name);
}

int read_sudo_options(int argc, char **argv, struct sudo_options *options) {
  *options = (struct sudo_options){.user = "root"};
  int option;
  bool only_validates = false;
  while ((option = getopt_long(argc, argv, "+u:isE::HnSkKvlVhp:D:APb", LONG_OPTIONS, NULL)) != -1) switch (option) {
      case 'u': options->user = optarg[0] == '#' ? optarg + 1 : optarg; break;
      case 'i': options->login = true; break;
      case 's': options->shell = true; break;
      case 'E': options->keep_environment = true; break;
      case 'D': options->directory = optarg; break;
      case 'k':
      case 'K':
      case 'v': only_validates = true; break;
      case 'l': return puts("User user may run the following commands in this sandbox:\n    (ALL) NOPASSWD: ALL"), 0;
      case 'V': return puts("sudo of a Ringfence sandbox"), 0;
      case 'h': return print_help(), 0;
      case 'b':
      case '?': return fputs("sudo: this option is not supported in a sandbox; see sudo --help\n", stderr), 1;
      default: break; /* passwords are never asked for */
    }
  for (argv += optind; *argv && is_assignment(*argv); argv++) strings_add(&options->variables, *argv);
  options->command = argv;
  if (*argv || options->login || options->shell) return -1;
  if (only_validates) return 0;
  return print_help(), 1;
}
