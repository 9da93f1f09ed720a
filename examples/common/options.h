// Command-line options of the examples: integers and file names, plus --help.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

struct Option {
  const char* name;  // "--size"
  const char* help;
  long* number;  // integer option; else `text` is set
  long min = 1;
  long max = 1L << 30;
  const char** text = nullptr;
};

// Stores the given options; exits on --help (status 0) and on a usage error (status 2).
inline void parse_options(int argc, char** argv, const char* summary, std::initializer_list<Option> options) {
  for (int i = 1; i < argc; ++i) {
    if (!std::strcmp(argv[i], "--help") || !std::strcmp(argv[i], "-h")) {
      std::printf("Usage: %s [options]\n%s\n\nOptions:\n", argv[0], summary);
      for (const Option& option : options) {
        if (option.text) std::printf("  %-14s FILE  %s\n", option.name, option.help);
        if (option.number)
          std::printf("  %-14s N     %s (default %ld)\n", option.name, option.help, *option.number);
      }
      std::exit(0);
    }
    const Option* found = nullptr;
    for (const Option& option : options)
      if (!std::strcmp(argv[i], option.name)) found = &option;
    if (!found || i + 1 == argc) {
      std::fprintf(stderr, "%s: %s '%s'; try --help\n", argv[0], found ? "no value after" : "unknown option",
                   argv[i]);
      std::exit(2);
    }
    const char* value = argv[++i];
    if (found->text) {
      *found->text = value;
      continue;
    }
    char* end = nullptr;
    *found->number = std::strtol(value, &end, 10);
    if (*end || end == value || *found->number < found->min || *found->number > found->max) {
      std::fprintf(stderr, "%s: %s takes a number from %ld to %ld, not '%s'\n", argv[0], found->name,
                   found->min, found->max, value);
      std::exit(2);
    }
  }
}
