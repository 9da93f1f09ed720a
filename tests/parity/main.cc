// driver_parity: driver calls with valid and invalid arguments, in parts that run in separate processes.
// Prints every result; parity_test.cc compares the outputs of softgpu directly and through poold. --parts
// prints the parts' names.
#include <signal.h>

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
  for (const Part& part : kParts) {
    if (count != 2 || std::strcmp(words[1], part.name)) continue;
    install_guard();
    if (part.context) {
      CUcontext context = nullptr;
      if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return EXIT_FAILURE;
    }
    part.run();
    return EXIT_SUCCESS;
  }
  std::fprintf(stderr, "usage: %s PART | --parts\n", words[0]);
  return 2;
}
