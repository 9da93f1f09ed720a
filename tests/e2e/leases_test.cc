// Programs with a lease see only its GPUs, within its limits.
#include "common/text/gpu_uuid.h"
#include "protocol/calls/handles.h"
#include "protocol/wire/commands.h"
#include "tests/e2e/shared_pool.h"
#include "tests/support/catch.h"
#include "tests/support/etcd.h"
#include "tests/support/has.h"
#include "tests/support/lease_maker.h"
#include "tests/support/proxy.h"
#include "tests/support/raw_client.h"

using namespace gpupool;
using namespace gpupool::testing;
using Lines = std::vector<std::string>;

namespace {

const Environment kFourDevices{{"SOFTGPU_MEMORY", "128MiB"}, {"SOFTGPU_DEVICES", "4"}};
// For tests that count whole granules: contexts take no memory.
const Environment kWithoutContextMemory{
    {"SOFTGPU_MEMORY", "128MiB"}, {"SOFTGPU_DEVICES", "4"}, {"SOFTGPU_RULES", "-context_memory"}};

Lines gpus_of(Pool& pool) {
  const Finished told = run_to_end(
      {program_path("pool-admin"), "--poold", "unix:" + pool.poold().admin_socket(), "--json", "gpus"});
  Lines uuids;
  for (size_t at = told.output.find("GPU-"); at != std::string::npos; at = told.output.find("GPU-", at + 1))
    uuids.push_back(told.output.substr(at, 40));
  INFO(told.output);
  REQUIRE(uuids.size() == 4);
  return uuids;
}

// Returns the UUIDs of the devices that a program with this token sees.
Lines seen(const Pool& pool, const std::string& token, Environment more = {}) {
  more["GPUPOOL_TOKEN"] = token;
  const Finished app = run_patiently({driver_app(), "list_devices"}, pool.through(more));
  INFO(app.output);
  CHECK(app.status == 0);
  Lines uuids;
  for (const std::string& line : lines_with(app.output, "GPU-"))
    uuids.push_back(line.substr(line.find("GPU-"), 40));
  return uuids;
}

}  // namespace

TEST_CASE("a lease shows its GPUs in its order and no others") {
  LeaseMaker maker;
  Pool pool(kFourDevices, maker.options());
  const Lines gpus = gpus_of(pool);
  CHECK(seen(pool, maker.token(maker.lease({gpus[2], gpus[0]}))) == Lines{gpus[2], gpus[0]});
  CHECK(seen(pool, maker.token(maker.lease({gpus[3]}))) == Lines{gpus[3]});
  CHECK(seen(pool, maker.token(maker.lease({gpus[3], gpus[1]})), {{"CUDA_VISIBLE_DEVICES", "1"}}) ==
        Lines{gpus[1]});
  for (const char* const scenario : {"two_devices", "kernels_on_two_devices", "copies_between_devices"}) {
    const std::string token = maker.token(maker.lease({gpus[3], gpus[1]}, 1000, 0));
    const Finished app = run_patiently({driver_app(), scenario}, pool.through({{"GPUPOOL_TOKEN", token}}));
    INFO(scenario << ": " << app.output);
    CHECK(app.status == 0);
  }
  CHECK(has(pool.poold().log(), "tenant=physics/01787878"));
  CHECK(has(pool.poold().log(), "lease=01787878787878787878787878787878"));
}

TEST_CASE("a leased host that does not answer at once is asked again") {
  LeaseMaker maker;
  Pool pool(kFourDevices, maker.options());
  TemporaryFolder folder;
  const int port = free_port();
  const std::string file =
      folder.write("lease", "gpupool lease 1\ntcp://127.0.0.1:" + std::to_string(port) + " " +
                                maker.token(maker.lease({gpus_of(pool)[2]})) + "\n");
  Environment environment = pool.through({{"GPUPOOL", "lease:" + file},
                                          {"GPUPOOL_LOG", "debug"},
                                          {"GPUPOOL_BULK_CONNECTIONS", "0"},
                                          {"GPUPOOL_CONNECT_TIMEOUT_MS", "60000"}});
  Process app({driver_app(), "list_devices"}, environment);
  REQUIRE(app.await_output("retrying"));
  const Proxy host_comes(pool.poold().endpoint(), Proxy::kNever, Proxy::kNever, static_cast<uint16_t>(port));
  const int status = app.wait(kLongPatience);
  app.await_end_of_output();
  INFO(app.output());
  CHECK(status == 0);
  // Without a lease the address may be wrong, so the failure is reported at once.
  const Finished unleased =
      run_patiently({driver_app(), "list_devices"},
                    pool.through({{"GPUPOOL", "tcp://127.0.0.1:" + std::to_string(free_port())},
                                  {"GPUPOOL_LOG", "debug"}}));
  CHECK(unleased.status != 0);
  CHECK(!has(unleased.output, "retrying"));
}

TEST_CASE("a session of a lease gets at no other GPU") {
  LeaseMaker maker;
  Pool pool(kFourDevices, maker.options());
  const Lines gpus = gpus_of(pool);
  hello::Hello hello = test_hello();
  hello.token = maker.token(maker.lease({gpus[2]}, 500, 32u << 20));
  RawClient client(pool.poold().endpoint());
  const auto reply = client.open(hello);
  REQUIRE(reply.devices.size() == 1);
  CHECK(gpu_uuid_text(reply.devices[0].uuid) == gpus[2]);
  CHECK(reply.devices[0].total_bytes == 32u << 20);
  const auto retain = [&](int device, uint32_t index) {
    const wire::PrimaryContext body{
        .handle = cuda::make_handle(cuda::Kind::context, 1, index), .device = device, .flags = 0};
    return client
        .receive_reply_to(client.send_command(wire::Command::retain_primary_context,
                                              RawClient::bytes_of(body), 0, wire::kWantsReply))
        .header.result;
  };
  CHECK(retain(0, 1) == 0);
  uint32_t index = 2;
  for (const int other : {1, 2, 3, -1, 64, INT32_MAX})
    CHECK(retain(other, index++) == 101);  // CUDA_ERROR_INVALID_DEVICE
}

TEST_CASE("memory is the lease's and no more") {
  LeaseMaker maker;
  Pool pool(kWithoutContextMemory, maker.options());
  const Lines gpus = gpus_of(pool);
  const Finished app =
      run_patiently({driver_app(), "quota_every_way", "32"},
                    pool.through({{"GPUPOOL_TOKEN", maker.token(maker.lease({gpus[1]}, 1000, 64u << 20))}}));
  INFO(app.output);
  CHECK(app.status == 0);
}

TEST_CASE("a lease may have another share of each GPU") {
  LeaseMaker maker;
  Pool pool(kWithoutContextMemory, maker.options());
  const Lines gpus = gpus_of(pool);
  lease::Lease lease = maker.lease({gpus[2], gpus[0]}, 600, 64u << 20);
  lease.mutable_shares(1)->set_compute_milli(45);
  lease.mutable_shares(1)->set_memory_bytes(32u << 20);
  lease.set_mode(lease::HARD);
  const std::string token = maker.token(lease);
  const Finished app = run_patiently({driver_app(), "quota_of_each_device", "32", "16"},
                                     pool.through({{"GPUPOOL_TOKEN", token}}));
  INFO(app.output);
  CHECK(app.status == 0);

  const auto work_on = [&](const char* device) {
    Process working({driver_app(), "keep_busy", "2500", "300000"},
                    pool.through({{"GPUPOOL_TOKEN", token}, {"CUDA_VISIBLE_DEVICES", device}}));
    return done(working);
  };
  const auto works_by_share = [&] {
    const double few = work_on("1");
    return work_on("0") > 3 * few;
  };
  bool by_share = false;
  for (int runs = 0; runs < 4 && !by_share; ++runs)
    by_share = works_by_share();  // a busy machine may slow down either run
  CHECK(by_share);

  const Finished shown =
      run_to_end({program_path("pool-admin"), "--poold", "unix:" + pool.poold().admin_socket(), "gpus"});
  INFO(shown.output);
  CHECK(has(shown.output, " 60 % "));
  CHECK(has(shown.output, " 4.5 % "));
  CHECK(has(pool.poold().log(), "quota_compute=60 quota_gpus=\"0: memory 33554432 compute 4.5\""));
}

TEST_CASE("programs without a lease are told what this server serves") {
  LeaseMaker maker;
  Pool pool(kFourDevices, maker.options());
  const Finished without = run_patiently({driver_app(), "list_devices"}, pool.through());
  CHECK(has(without.output, "only accepts leases"));
  const Finished forged =
      run_patiently({driver_app(), "list_devices"}, pool.through({{"GPUPOOL_TOKEN", "lease:AAAA"}}));
  CHECK(has(forged.output, "damaged"));
  CHECK(eventually([&] { return has(pool.poold().log(), "damaged"); }));
}
