// Tests what pool-lease tells programs of a lease that moves to another server.
#include "tests/client/lease_client/fake_scheduler.h"
#include "tests/support/catch.h"
#include "tests/support/poold_process.h"

using namespace gpupool;
using namespace gpupool::testing;

TEST_CASE("a program finds in its lease file where the lease moves") {
  const TemporaryFolder home;
  std::unique_ptr<FakeScheduler> scheduler;
  scheduler = std::make_unique<FakeScheduler>(
      [&](const pool::AcquireCall&, FakeScheduler::Stream& stream, grpc::ServerContext&) {
        pool::AcquireEvent event =
            FakeScheduler::granted({{"tcp://192.0.2.1:7", "one"}, {"tcp://192.0.2.2:7", "two"}});
        pool::Move& move = *event.mutable_granted()->add_moves();
        move.set_server(1);
        move.mutable_to()->set_address("tcp://192.0.2.3:7");
        move.mutable_to()->set_token("three");
        stream.Write(event);
        return scheduler->await_release(stream) ? grpc::Status::OK : grpc::Status::CANCELLED;
      });
  const Finished app = run_to_end({program_path("pool-run"), "--server", "pool://" + scheduler->address(),
                                   "--", "sh", "-c", "cat ${GPUPOOL#lease:}"},
                                  {{"XDG_RUNTIME_DIR", home.path()}, {"GPUPOOL_TOKEN", "the-token"}});
  INFO(app.output);
  CHECK(app.output.find("tcp://192.0.2.1:7 one\ntcp://192.0.2.2:7 two\n> tcp://192.0.2.3:7 three\n") !=
        std::string::npos);
}
