// driver_parity: driver calls with valid and invalid arguments, in parts that run in separate processes.
// Prints every result; parity_test.cc compares the outputs of softgpu directly and through poold. --parts
// prints the parts' names. Before each of several parts prints "---- part" and its name.
#include <signal.h>
#include <sys/wait.h>

#include <cstdlib>
#include <cstring>

#include "tests/parity/show.h"

using namespace parity;

namespace {

struct Part {
  const char* name;
  void (*run)();
  bool context;  // needs a current context
};
constexpr Part kParts[] = {
#define PART(function, context, ...) {#function, function, context},
#include "tests/parity/parts.def"
#undef PART
};

const Part* find_part(const char* name) {
  for (const Part& part : kParts) {
    if (std::strcmp(part.name, name) == 0) return &part;
  }
  return nullptr;
}

// Returns the status with which the process ends.
int run_part(const Part& part) {
  install_guard();
  if (part.context) {
    CUcontext context = nullptr;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return EXIT_FAILURE;
  }
  part.run();
  return EXIT_SUCCESS;
}

// Runs the part in a child. This process has made no driver call, so the child can initialise the driver, and
// need not load the driver's libraries again.
bool run_in_child(const Part& part) {
  std::printf("---- part %s\n", part.name);
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) std::exit(run_part(part));
  int status = 0;
  return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

void leave_call(int signal) {
  if (!guard.armed) {
    ::signal(signal, SIG_DFL);  // the fault occurs again and ends the program
    return;
  }
  guard.armed = false;
  siglongjmp(guard.before_call, 1);
}

}  // namespace

namespace parity {

Guard guard;

void install_guard() {
  const char* const wanted = std::getenv("PARITY_GUARDED");
  guard.on = wanted != nullptr && std::strcmp(wanted, "1") == 0;
  if (!guard.on) return;
  for (const int number : {SIGSEGV, SIGBUS, SIGFPE}) ::signal(number, leave_call);
}

}  // namespace parity

int main(int count, char** words) {
  if (count == 2 && std::strcmp(words[1], "--parts") == 0) {
    for (const Part& part : kParts) std::puts(part.name);
    return EXIT_SUCCESS;
  }
  for (int i = 1; i < count; ++i) {
    if (find_part(words[i]) == nullptr) count = 0;
  }
  if (count < 2) {
    std::fprintf(stderr, "usage: %s PART... | --parts\n", words[0]);
    return 2;
  }
  if (count == 2) return run_part(*find_part(words[1]));
  bool good = true;
  for (int i = 1; i < count; ++i) good = run_in_child(*find_part(words[i])) && good;
  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
