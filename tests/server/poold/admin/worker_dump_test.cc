// Tests how poold sanitizes the dump that a worker sends.
#include "server/poold/admin/worker_dump.h"

#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::server;

TEST_CASE("texts of a worker's dump are made printable and truncated and its lists are truncated") {
  admin::WorkerDump said;
  said.mutable_executor()->set_command("cuMem\x1b[2JAlloc\n");
  said.mutable_executor()->set_driver_function(std::string(5000, 'f'));
  said.mutable_executor()->set_age_ms(7);
  for (int i = 0; i < 1000; ++i) {
    said.add_kept()->set_waits_for("\t");
    said.add_gates()->set_reason("\t");
    said.add_copies()->set_done_bytes(1);
    said.add_waits()->set_purpose("\t");
    said.add_bulk_connections()->set_receiver("\t");
    said.add_work()->set_gpu(1);
    said.add_busy_locks("\t");
  }
  const auto dump = read_worker_dump(said.SerializeAsString());
  REQUIRE(dump);
  CHECK(dump->executor().command() == "cuMem?[2JAlloc?");
  CHECK(dump->executor().driver_function() == std::string(128, 'f'));
  CHECK(dump->executor().age_ms() == 7);
  for (const int size : {dump->kept_size(), dump->gates_size(), dump->copies_size(), dump->waits_size(),
                         dump->bulk_connections_size(), dump->work_size(), dump->busy_locks_size()}) {
    CHECK(size == 64);
  }
  CHECK(dump->kept(63).waits_for() == "?");
  CHECK(dump->gates(63).reason() == "?");
  CHECK(dump->waits(63).purpose() == "?");
  CHECK(dump->bulk_connections(63).receiver() == "?");
  CHECK(dump->busy_locks(63) == "?");
}

TEST_CASE("bytes that are not a dump are an error") {
  CHECK(read_worker_dump("\x0a\xff").error().code == ErrorCode::malformed);
  CHECK(read_worker_dump("")->executor().command().empty());
}
