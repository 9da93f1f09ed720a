// poold: serves this host's GPUs to remote programs. See poold --help.
#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>
#include <exception>

#include "server/poold/check_host.h"
#include "server/poold/options.h"
#include "server/poold/start.h"
#include "server/poold/upgrade/successor.h"

namespace {

// Opens /dev/null on each of descriptors 0 to 2 that the caller has closed, so that no socket gets its
// number.
void fill_standard_descriptors() {
  for (int descriptor = ::open("/dev/null", O_RDWR); descriptor >= 0;
       descriptor = ::open("/dev/null", O_RDWR)) {
    if (descriptor <= STDERR_FILENO) continue;
    ::close(descriptor);
    return;
  }
}

}  // namespace

int main(int count, char** arguments) {
  using namespace gpupool::server;
  try {
    if (has_previous_program()) ::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);  // before anything takes time
    fill_standard_descriptors();
    const auto parsed = parse_options(count, arguments);
    if (const auto* early = std::get_if<EarlyExit>(&parsed)) return early->status;
    const auto& options = std::get<ServerOptions>(parsed);
    return options.check_host ? check_host(options) : start_daemon(options, {arguments, arguments + count});
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "poold: %s\n", failure.what());
    return kExitFailure;
  }
}
