#include "server/poold/node/leases.h"

#include <cstring>
#include <map>

#include "common/text/gpu_uuid.h"
#include "server/tenants/authenticate.h"
#include "tests/support/catch.h"
#include "tests/support/contains.h"
#include "tests/support/lease_maker.h"

using namespace gpupool;
using namespace gpupool::testing;
using Catch::Matchers::ContainsSubstring;
using server::Leases;
using server::Tenants;
using std::chrono::milliseconds;

namespace {

constexpr milliseconds kTenMinutes{600'000};
const std::string kBoot(lease::kBootBytes, 'b');

std::string gpu_bytes(int index) {
  return std::string(15, 'g') + static_cast<char>(index);
}
std::string gpu(int index) {
  return gpu_uuid_text(gpu_bytes(index));
}

// The leases of a poold with four GPUs; sessions are counts per tenant.
struct Node {
  Node() {
    for (int i = 0; i < 4; ++i) {
      devices.emplace_back();
      devices.back().set_uuid(gpu_bytes(i));
    }
    leases.on_end([this] { ++told; });
    tenants.on_removal([this](const std::string& name) { removed.push_back(name); });
  }
  std::string admit(const lease::Lease& lease) { return admit_token(maker.token(lease)); }
  // The same for a client that resumes one of the lease's sessions.
  std::string readmit(const lease::Lease& lease) {
    const auto admitted = leases.admit(maker.token(lease), /*resumes=*/true);
    return admitted ? admitted->tenant : admitted.error().message;
  }
  // Returns the tenant's name, or the error's message.
  std::string admit_token(const std::string& token) {
    const auto admitted = leases.admit(token);
    if (!admitted) return admitted.error().message;
    last_lease = admitted->lease;
    ++sessions[admitted->tenant];
    return admitted->tenant;
  }
  void session_ends(const std::string& tenant) {
    --sessions[tenant];
    leases.post_cleanup();
    run();
  }
  void run() {
    context.restart();
    context.poll();
  }
  std::map<std::string, pool::LeaseUse> report() {
    pool::NodeReport out;
    leases.report(out);
    std::map<std::string, pool::LeaseUse> by_id;
    for (const pool::LeaseUse& use : out.leases()) by_id[use.lease()] = use;
    CHECK(by_id.size() == static_cast<size_t>(out.leases_size()));
    return by_id;
  }

  asio::io_context context;
  LeaseMaker maker;
  Tenants tenants{{}, Tenants::Anonymous::refused};
  std::vector<control::Device> devices;
  std::map<std::string, size_t> sessions;
  std::map<std::string, std::string> ended, waiting_refused;  // reason by tenant
  std::map<std::string, std::string> moved;                   // address by tenant
  std::function<void(const std::string&)> cannot_move;
  std::vector<std::string> removed;
  std::string last_lease;
  milliseconds now = time_now();
  int told = 0;
  Leases leases{context,
                tenants,
                "gpu-1",
                kBoot,
                {maker.public_key()},
                {.devices = [this]() -> const std::vector<control::Device>& { return devices; },
                 .sessions = [this](const std::string& tenant) { return sessions[tenant]; },
                 .end_sessions = [this](const std::string& tenant,
                                        const std::string& reason) { ended[tenant] = reason; },
                 .refuse_waiting = [this](const std::string& tenant,
                                          const std::string& reason) { waiting_refused[tenant] = reason; },
                 .move_sessions =
                     [this](const std::string& tenant, const std::string& address,
                            std::function<void(const std::string&)> failed) {
                       moved[tenant] = address;
                       cannot_move = std::move(failed);
                     },
                 .now = [this] { return now; }}};
};

}  // namespace

TEST_CASE("a lease is a tenant of its own with the limits that it says", "[leases]") {
  Node node;
  lease::Lease lease = node.maker.lease({gpu(2), gpu(0)}, 305, 1 << 20);
  lease.set_mode(lease::HARD);
  lease.set_priority(lease::LATENCY_CRITICAL);
  lease.set_to_device_bytes_per_second(7);
  lease.set_to_host_bytes_per_second(8);
  lease.set_sessions(9);
  const std::string name = node.admit(lease);
  CHECK(name == "physics/01787878");
  CHECK(node.last_lease == "01787878787878787878787878787878");
  const server::Tenant* const tenant = node.tenants.find(name);
  REQUIRE(tenant);
  CHECK(tenant->leased);
  CHECK(tenant->gpus == std::vector<uint32_t>{2, 0});
  CHECK(tenant->quota.each == quota::GpuShare{.memory_bytes = 1 << 20, .compute_milli = 305});
  CHECK(tenant->quota.gpus.empty());
  CHECK(tenant->quota.mode == quota::Mode::hard);
  CHECK(tenant->quota.priority == quota::Priority::latency_critical);
  CHECK(tenant->quota.to_device_bytes_per_second == 7);
  CHECK(tenant->quota.to_host_bytes_per_second == 8);
  CHECK(tenant->quota.sessions == 9);
  CHECK(node.admit(node.maker.lease({gpu(0)})) != name);
  CHECK(node.admit(lease) == name);  // a second session of the lease

  // Reloading the configuration keeps the lease's tenant, and no client is authenticated as it without its
  // token.
  node.tenants.replace({});
  CHECK(node.tenants.find(name));
  CHECK_FALSE(server::authenticate(node.tenants, {.tenant = name}));
  CHECK_FALSE(server::authenticate(node.tenants, {}));
}

TEST_CASE("a lease may have another share of each GPU", "[leases]") {
  Node node;
  lease::Lease lease = node.maker.lease({gpu(3), gpu(1), gpu(0)}, 500, 4u << 20);
  lease.mutable_shares(1)->set_compute_milli(251);
  lease.mutable_shares(1)->set_memory_bytes(2u << 20);
  const std::string name = node.admit(lease);
  const quota::Quota& quota = node.tenants.find(name)->quota;
  CHECK(quota.of(3) == quota::GpuShare{.memory_bytes = 4u << 20, .compute_milli = 500});
  CHECK(quota.of(1) == quota::GpuShare{.memory_bytes = 2u << 20, .compute_milli = 251});
  CHECK(quota.of(0) == quota.of(3));
  lease.set_serial(2);  // renewed with equal shares
  *lease.mutable_shares(1) = lease.shares(0);
  lease.mutable_shares(1)->set_gpu_uuid(gpu(1));
  CHECK(node.admit(lease) == name);
  CHECK(node.tenants.find(name)->quota.of(1) == quota.of(0));
}

TEST_CASE("two leases of one tenant with a common ID prefix are two tenants", "[leases]") {
  Node node;
  lease::Lease one = node.maker.lease({gpu(0)}), other = one;
  other.mutable_id()->back() = 'y';
  const std::string name = node.admit(one);
  const std::string second = node.admit(other);
  CHECK(second == "physics/01787878787878787878787878787879");
  CHECK(name != second);
}

TEST_CASE("tokens that are not valid for this node are refused", "[leases]") {
  Node node;
  CHECK_THAT(node.admit_token("lease:AAAA"), ContainsSubstring("damaged"));
  CHECK_THAT(node.admit(LeaseMaker("gpu-2").lease({gpu(0)})), ContainsSubstring("'gpu-2'"));
  LeaseMaker stranger;
  CHECK_THAT(node.admit_token(stranger.token(stranger.lease({gpu(0)}))),
             ContainsSubstring("is not configured"));
  CHECK_THAT(node.admit(node.maker.lease({gpu(4)})), ContainsSubstring("does not have"));
  lease::Lease booted = node.maker.lease({gpu(0)});
  booted.set_boot(kBoot);
  CHECK(node.admit(booted) == "physics/02787878");
  booted.set_boot(std::string(lease::kBootBytes, 'a'));
  CHECK_THAT(node.admit(booted), ContainsSubstring("was restarted"));
  node.session_ends("physics/02787878");
  lease::Lease old = node.maker.lease({gpu(0)});
  node.now += kTenMinutes + lease::kClockSkew + milliseconds(1000);
  CHECK_THAT(node.admit(old), ContainsSubstring("expired"));
  node.leases.use_keys({});
  CHECK_THAT(node.admit(node.maker.lease({gpu(0)})), ContainsSubstring("does not accept leases"));
  CHECK(node.tenants.all().size() == 1);
}

TEST_CASE("older tokens of a renewed lease are refused", "[leases]") {
  Node node;
  lease::Lease lease = node.maker.lease({gpu(0)});
  const lease::Lease first = lease;
  const std::string name = node.admit(first);
  lease.set_serial(2);
  lease.mutable_shares(0)->set_compute_milli(700);
  CHECK(node.admit(lease) == name);
  CHECK(node.tenants.find(name)->quota.each.compute_milli == 700);
  CHECK_THAT(node.admit(first), ContainsSubstring("renewed"));
  CHECK(node.admit(lease) == name);
  CHECK(node.report().at(lease.id()).serial() == 2);
  lease.set_serial(3);
  lease.mutable_shares(0)->set_gpu_uuid(gpu(1));
  CHECK_THAT(node.admit(lease), ContainsSubstring("other GPUs"));
}

// The links of a session resume at the same time, each with the token that it finds in the lease file.
TEST_CASE("sessions resume with a token from before the last renewal, which changes nothing", "[leases]") {
  Node node;
  lease::Lease lease = node.maker.lease({gpu(0)});
  const lease::Lease first = lease;
  lease.set_serial(2);
  lease.mutable_shares(0)->set_compute_milli(700);
  const std::string name = node.admit(lease);
  CHECK(node.readmit(first) == name);
  CHECK(node.tenants.find(name)->quota.each.compute_milli == 700);
  CHECK(node.report().at(lease.id()).serial() == 2);
  CHECK_THAT(node.admit(first), ContainsSubstring("renewed"));  // a new session
  // A newer token is as good as one for a new session.
  lease.set_serial(3);
  CHECK(node.readmit(lease) == name);
  CHECK(node.report().at(lease.id()).serial() == 3);

  lease::Lease elsewhere = first, expired = first;
  elsewhere.mutable_shares(0)->set_gpu_uuid(gpu(1));
  CHECK_THAT(node.readmit(elsewhere), ContainsSubstring("other GPUs"));
  expired.set_issued_ms((node.now - kTenMinutes).count());
  expired.set_expires_ms((node.now - 2 * lease::kClockSkew).count());
  CHECK_THAT(node.readmit(expired), ContainsSubstring("expired"));
  node.leases.end(lease.id(), "preempted", milliseconds(3'600'000));
  CHECK_THAT(node.readmit(first), ContainsSubstring("has ended: preempted"));
  node.leases.stop();
}

TEST_CASE("an ended lease accepts no new session and is reported once its last session is gone", "[leases]") {
  Node node;
  const lease::Lease lease = node.maker.lease({gpu(0)}), other = node.maker.lease({gpu(1)});
  const std::string name = node.admit(lease), others = node.admit(other);
  node.admit(lease);
  CHECK(node.report().at(lease.id()).sessions() == 2);
  node.leases.end(lease.id(), "preempted", milliseconds(0));
  CHECK_THAT(node.admit(lease), ContainsSubstring("has ended: preempted"));
  CHECK(eventually([&] {
    node.run();
    return node.ended.contains(name);
  }));
  CHECK(node.ended.at(name) == "the lease has ended: preempted");
  CHECK_FALSE(node.ended.contains(others));
  CHECK_FALSE(node.waiting_refused.contains(others));
  node.session_ends(name);
  CHECK(node.report().at(lease.id()).sessions() == 1);
  CHECK(node.told == 0);
  node.session_ends(name);
  CHECK(node.told == 1);
  CHECK(node.removed == std::vector<std::string>{name});
  const auto report = node.report();
  CHECK(report.at(lease.id()).sessions() == 0);
  CHECK(report.at(lease.id()).serial() == 1);
  CHECK(report.at(other.id()).sessions() == 1);
  CHECK_FALSE(node.report().contains(lease.id()));  // reported only once

  CHECK_THAT(node.admit(lease), ContainsSubstring("has ended"));
  lease::Lease renewed = lease;
  renewed.set_serial(9);
  CHECK_THAT(node.admit(renewed), ContainsSubstring("has ended"));
  // The scheduler repeats its order if the answer was lost.
  node.leases.end(lease.id(), "preempted", milliseconds(0));
  node.run();
  CHECK(node.told == 2);
  CHECK(node.report().at(lease.id()).sessions() == 0);
}

TEST_CASE("sessions have the grace period of the order and a shorter later one applies", "[leases]") {
  Node node;
  const lease::Lease lease = node.maker.lease({gpu(0)});
  const std::string name = node.admit(lease);
  node.leases.end(lease.id(), "maintenance", milliseconds(3'600'000));
  CHECK(node.waiting_refused.at(name) == "the lease has ended: maintenance");
  node.run();
  CHECK_THAT(node.admit(lease), ContainsSubstring("has ended"));
  CHECK(node.ended.empty());
  node.leases.end(lease.id(), "now", milliseconds(1));
  node.leases.end(lease.id(), "now", milliseconds(3'600'000));
  CHECK(eventually([&] {
    node.run();
    return !node.ended.empty();
  }));
  CHECK(node.ended.at(name) == "the lease has ended: now");
  node.leases.stop();
}

TEST_CASE("a lease moves when its last session has moved, and only by an order of that time", "[leases]") {
  Node node;
  const lease::Lease lease = node.maker.lease({gpu(0)}, 500);
  const std::string name = node.admit(lease);
  node.admit(lease);
  node.leases.move(lease.id(), "tcp://gpu-2:9700", 4);
  CHECK(node.moved[name] == "tcp://gpu-2:9700");
  CHECK(node.ended.empty());
  node.cannot_move("it has arrays");
  CHECK(node.report().at(lease.id()).cannot_move() == "it has arrays");
  CHECK(node.report().at(lease.id()).cannot_move().empty());  // said once
  node.admit(lease);                                          // new sessions are admitted until then
  node.session_ends(name);
  node.session_ends(name);
  CHECK(node.told == 0);
  node.session_ends(name);
  CHECK(node.told == 1);  // asks for the next order
  node.admit(lease);      // the move may have been given up meanwhile
  node.session_ends(name);
  node.leases.move(lease.id(), "tcp://gpu-2:9700", 4);
  node.run();
  const auto report = node.report();
  CHECK(report.at(lease.id()).sessions() == 0);
  CHECK_THAT(node.admit(lease), ContainsSubstring("ended"));
  CHECK(node.ended.empty());
}

TEST_CASE("a lease that has no session here moves at once, and an ending one does not move", "[leases]") {
  Node node;
  const lease::Lease unused = node.maker.lease({gpu(0)}, 500);
  node.leases.move(unused.id(), "tcp://gpu-2:9700", 0);
  node.run();
  CHECK(node.report().at(unused.id()).sessions() == 0);
  CHECK_THAT(node.admit(unused), ContainsSubstring("ended"));
  Node other;
  const std::string name = other.admit(unused);
  other.leases.end(unused.id(), "released", milliseconds(60'000));
  other.leases.move(unused.id(), "tcp://gpu-2:9700", 0);
  CHECK(other.moved.empty());
}

TEST_CASE("a lease that has moved away comes back with later tokens alone", "[leases]") {
  Node node;
  lease::Lease lease = node.maker.lease({gpu(0)}, 500);
  lease.set_serial(3);
  const std::string name = node.admit(lease);
  node.session_ends(name);
  node.leases.move(lease.id(), "tcp://gpu-2:9700", 4);
  node.run();
  CHECK(node.report().at(lease.id()).sessions() == 0);
  for (const uint64_t serial : {3u, 4u}) {
    lease.set_serial(serial);
    CHECK_THAT(node.admit(lease), ContainsSubstring("ended"));
    CHECK_THAT(node.readmit(lease), ContainsSubstring("ended"));
  }
  lease.set_serial(5);
  CHECK(node.admit(lease) == name);
  CHECK(node.report().at(lease.id()).sessions() == 1);
  node.leases.end(lease.id(), "released", milliseconds(0));
  lease.set_serial(9);
  CHECK_THAT(node.admit(lease), ContainsSubstring("ended"));
}

TEST_CASE("a lease that was never used can be ended", "[leases]") {
  Node node;
  const lease::Lease lease = node.maker.lease({gpu(0)});
  node.leases.end(lease.id(), "evicted", milliseconds(10'000));
  node.run();
  CHECK(node.told == 1);
  CHECK(node.report().at(lease.id()).sessions() == 0);
  CHECK_THAT(node.admit(lease), ContainsSubstring("has ended"));
}

TEST_CASE("orders to end leases without end do not fill the memory and admit no ended lease again",
          "[leases]") {
  Node node;
  const lease::Lease used = node.maker.lease({gpu(0)});
  const std::string name = node.admit(used);
  node.leases.end(used.id(), "preempted", milliseconds(3'600'000));
  std::string id(lease::kIdBytes, '\0');
  for (uint32_t number = 0; number < Leases::kMostEnded + 1000; ++number) {
    std::memcpy(id.data(), &number, sizeof number);
    node.leases.end(id, "flood", milliseconds(0));
  }
  CHECK(node.leases.ended() == Leases::kMostEnded);
  CHECK(node.report().size() <= Leases::kMostEnded + 1);
  CHECK_THAT(node.admit(used), ContainsSubstring("has ended: preempted"));
  node.now += lease::kLongestLife + 3 * lease::kClockSkew;
  node.report();
  CHECK(node.leases.ended() == 0);
  node.leases.stop();
}

TEST_CASE("expiry ends no running session and forgets leases without sessions", "[leases]") {
  Node node;
  const lease::Lease lease = node.maker.lease({gpu(0)});
  const std::string name = node.admit(lease);
  node.now +=
      kTenMinutes + lease::kClockSkew + milliseconds(60'000);  // the lease may be younger than the node
  CHECK(node.report().at(lease.id()).sessions() == 1);
  CHECK(node.ended.empty());
  node.session_ends(name);
  CHECK(node.tenants.find(name) == nullptr);
  CHECK(node.report().empty());  // no order to end it
  CHECK(node.told == 0);
}
