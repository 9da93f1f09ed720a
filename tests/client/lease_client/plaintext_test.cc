// Tests that pool-lease speaks TLS with a scheduler whose name only begins like loopback.
#include "tests/support/catch.h"
#include "tests/support/certificates.h"
#include "tests/support/poold_process.h"
#include "tests/support/raw_grpc.h"

using namespace gpupool;
using namespace gpupool::testing;

TEST_CASE("sends no plaintext to a scheduler whose name only begins like loopback") {
  const TemporaryFolder home;
  const Authority roots("roots");
  RawGrpc::Listener scheduler;
  // As 127.evil.example, but one that getaddrinfo() resolves to 127.0.0.1.
  const std::string server = "pool://127.1:" + std::to_string(scheduler.port());
  Process run({program_path("pool-run"), "--server", server, "true"},
              {{"GRPC_DNS_RESOLVER", "native"},
               {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", roots.certificate()},
               {"XDG_RUNTIME_DIR", home.path()},
               {"GPUPOOL_TOKEN", "the-token"}});
  CHECK(scheduler.accept_first_byte() == RawGrpc::Listener::kTls);
}
