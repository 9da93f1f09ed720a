// Tests of the search for moves that make room for a request.
#include "scheduler/placement/defragment.h"

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <map>
#include <random>
#include <set>

#include "tests/scheduler/placement/nodes.h"
#include "tests/support/catch.h"

using namespace gpupool::placement;

namespace {

constexpr double kHour = 3600;

// A pool of equal GPUs of 16 GiB, and what runs on it.
struct Floor {
  std::vector<DefragHost> hosts;
  std::vector<RunningPart> parts;
  DefragRequest request;
  DefragLimits limits;

  // The request asks for this share of so many GPUs.
  explicit Floor(int gpus, bool one_host = true, int milli = 1000) {
    request.gpus = gpus;
    request.one_host = one_host;
    request.milli = milli;
  }
  uint32_t host(int gpus, int64_t cpu_milli = 0) {
    DefragHost& added = hosts.emplace_back();
    added.cpu_milli = cpu_milli;
    for (int i = 0; i < gpus; ++i)
      added.gpus.push_back({.kind = 0,
                            .size = 16 * kGib,
                            .milli = 1000,
                            .memory = 16 * kGib,
                            .need_milli = static_cast<int>(request.milli),
                            .need_memory = 16 * kGib * static_cast<uint64_t>(request.milli) / 1000});
    return static_cast<uint32_t>(hosts.size() - 1);
  }
  // A lease that has these GPUs of the host and has run for an hour; a move takes a second.
  RunningPart& lease(uint32_t on, std::vector<uint32_t> gpus, int milli = 1000, bool movable = true) {
    RunningPart& part = parts.emplace_back();
    part.host = on;
    part.lease = static_cast<uint32_t>(parts.size());
    part.remaining = kHour;
    part.movable = movable;
    part.seconds = 1;
    part.bytes = gpus.size() * 16 * kGib * static_cast<uint64_t>(milli) / 1000;
    for (const uint32_t gpu : gpus) {
      const uint64_t memory = 16 * kGib * static_cast<uint64_t>(milli) / 1000;
      part.shares.push_back({gpu, milli, memory});
      hosts[on].gpus[gpu].milli -= milli;
      hosts[on].gpus[gpu].memory -= memory;
    }
    return part;
  }
  std::optional<DefragPlan> plan() const { return plan_defragmentation(hosts, parts, request, limits); }
  double wait() const { return expected_wait(hosts, parts, request); }
};

// Host 0 has `moves` GPUs with a lease each; as many further hosts have one GPU in use and one free.
Floor fragmented(int moves) {
  Floor floor(moves);
  floor.host(moves);
  for (int i = 0; i < moves; ++i) floor.lease(0, {static_cast<uint32_t>(i)});
  for (int i = 0; i < moves; ++i) {
    const uint32_t other = floor.host(2);
    floor.lease(other, {0}, 1000, false);
  }
  return floor;
}

// Fails the test unless the plan's targets have room before anything has left, and the request fits
// afterwards.
void check_plan(const Floor& floor, const DefragPlan& plan) {
  std::vector<DefragHost> hosts = floor.hosts;
  std::set<uint32_t> leases;
  double cost = 0, seconds = 0;
  uint64_t bytes = 0;
  std::set<std::pair<uint32_t, uint32_t>> place(plan.place.begin(), plan.place.end());
  REQUIRE(place.size() == static_cast<size_t>(floor.request.gpus));
  for (const auto& move : plan.moves) {
    const RunningPart& part = floor.parts.at(move.part);
    REQUIRE(part.movable);
    REQUIRE(leases.insert(part.lease).second);
    REQUIRE(move.host != part.host);
    REQUIRE(hosts.at(move.host).for_moves);
    for (const uint32_t host : part.excluded) REQUIRE(host != move.host);
    REQUIRE(move.gpus.size() == part.shares.size());
    REQUIRE(std::set<uint32_t>(move.gpus.begin(), move.gpus.end()).size() == move.gpus.size());
    for (size_t i = 0; i < move.gpus.size(); ++i) {
      DefragGpu& gpu = hosts[move.host].gpus.at(move.gpus[i]);
      const DefragGpu& before = floor.hosts[part.host].gpus[part.shares[i].gpu];
      REQUIRE(gpu.kind == before.kind);
      REQUIRE(gpu.size >= before.size);
      REQUIRE(gpu.milli >= part.shares[i].milli);
      REQUIRE(gpu.memory >= part.shares[i].memory);
      gpu.milli -= part.shares[i].milli;
      gpu.memory -= part.shares[i].memory;
    }
    REQUIRE(hosts[move.host].cpu_milli >= part.cpu_milli);
    hosts[move.host].cpu_milli -= part.cpu_milli;
    cost += part.cost(), seconds += part.seconds, bytes += part.bytes;
  }
  for (const auto& move : plan.moves) {
    const RunningPart& part = floor.parts[move.part];
    for (const auto& share : part.shares) {
      hosts[part.host].gpus[share.gpu].milli += share.milli;
      hosts[part.host].gpus[share.gpu].memory += share.memory;
    }
    hosts[part.host].cpu_milli += part.cpu_milli;
  }
  std::map<uint32_t, int> used;  // GPUs of each host
  for (const auto& [host, index] : place) {
    const DefragGpu& gpu = hosts.at(host).gpus.at(index);
    REQUIRE(hosts[host].for_request);
    REQUIRE(gpu.need_milli > 0);
    REQUIRE(gpu.milli >= gpu.need_milli);
    REQUIRE(gpu.memory >= gpu.need_memory);
    ++used[host];
  }
  if (floor.request.one_host) REQUIRE(used.size() == 1);
  for (const auto& [host, gpus] : used) {
    const int64_t of_one = (floor.request.cpu_milli + floor.request.gpus - 1) / floor.request.gpus;
    const bool all = gpus == floor.request.gpus;
    REQUIRE(hosts[host].cpu_milli >= (all ? floor.request.cpu_milli : of_one * gpus));
  }
  REQUIRE(plan.moves.size() <= floor.limits.moves);
  REQUIRE(plan.bytes == bytes);
  REQUIRE(bytes <= floor.limits.bytes);
  REQUIRE(plan.cost == Approx(cost));
  REQUIRE(plan.seconds == Approx(seconds));
  REQUIRE(plan.wait == floor.wait());
  REQUIRE(plan.cost < plan.gain);
}

}  // namespace

TEST_CASE("one, two or three moves make room for a request on one host") {
  for (const int moves : {1, 2, 3}) {
    INFO(moves);
    Floor floor = fragmented(moves);
    if (moves == 1) floor.request.gpus = 2, floor.hosts[0].gpus.push_back(floor.hosts[1].gpus[1]);
    const auto plan = floor.plan();
    REQUIRE(plan);
    check_plan(floor, *plan);
    CHECK(plan->moves.size() == static_cast<size_t>(moves));
    CHECK(plan->place.front().first == 0);
    floor.limits.moves = static_cast<uint32_t>(moves - 1);
    CHECK_FALSE(floor.plan());
  }
}

TEST_CASE("a request that fits, or for which too little is free, needs no moves") {
  Floor floor(2);
  floor.host(2), floor.host(2);
  CHECK_FALSE(floor.plan());
  CHECK(floor.wait() == 0);
  floor.lease(0, {0});
  CHECK_FALSE(floor.plan());
  floor.lease(1, {0});
  CHECK(floor.plan());
  CHECK(floor.wait() == kHour);
  floor.lease(1, {1});
  CHECK_FALSE(floor.plan());
}

TEST_CASE("a lease that cannot move stays") {
  Floor floor(2);
  floor.host(2), floor.host(2);
  floor.lease(0, {0}).movable = false;
  floor.lease(1, {0});
  const auto plan = floor.plan();
  REQUIRE(plan);
  check_plan(floor, *plan);
  CHECK(plan->moves[0].part == 1);
  floor.parts[1].excluded = {0};
  CHECK_FALSE(floor.plan());
  floor.parts[1].excluded.clear();
  floor.parts[1].movable = false;
  CHECK_FALSE(floor.plan());
}

TEST_CASE("the cheapest moves are chosen") {
  Floor floor(2);
  for (const double seconds : {30, 5, 20}) {
    const uint32_t host = floor.host(2);
    floor.lease(host, {0}).seconds = seconds;
  }
  const auto plan = floor.plan();
  REQUIRE(plan);
  CHECK(plan->moves[0].part == 1);
  CHECK(plan->cost == 5);
  CHECK(plan->gain == 2 * (kHour - 5));
}

TEST_CASE("moves must cost less than they bring") {
  Floor floor(2);
  floor.host(2), floor.host(2);
  for (const uint32_t host : {0, 1}) {
    RunningPart& part = floor.lease(host, {0});
    part.seconds = 10;
    part.remaining = 16;  // waiting costs 2 GPUs for 16 s; a move takes 10 s and occupies a GPU
  }
  CHECK(floor.plan());
  for (RunningPart& part : floor.parts) part.remaining = 15;
  CHECK_FALSE(floor.plan());
}

TEST_CASE("moved memory is limited") {
  Floor floor(2);
  floor.host(2), floor.host(2);
  floor.lease(0, {0}), floor.lease(1, {0});
  floor.limits.bytes = 16 * kGib;
  CHECK(floor.plan());
  floor.limits.bytes -= 1;
  CHECK_FALSE(floor.plan());
}

TEST_CASE("only as many shares of a GPU move as the request needs") {
  Floor floor(1, true, 500);
  floor.host(1), floor.host(1);
  floor.lease(0, {0}, 400), floor.lease(0, {0}, 200).seconds = 3, floor.lease(0, {0}, 100);
  floor.lease(1, {0}, 700, false);
  // 300 of host 0 are free. Without the lease of 200 the request fits, without that of 400 as well.
  const auto plan = floor.plan();
  REQUIRE(plan);
  check_plan(floor, *plan);
  REQUIRE(plan->moves.size() == 1);
  CHECK(plan->moves[0].part == 1);  // the other one has no room on host 1
}

TEST_CASE("a request over several hosts keeps the GPUs that are free already") {
  Floor floor(2, false);
  floor.host(1), floor.host(1), floor.host(1), floor.host(1);
  floor.lease(1, {0}, 500), floor.lease(2, {0}, 500), floor.lease(3, {0}, 500, false);
  const auto plan = floor.plan();
  REQUIRE(plan);
  check_plan(floor, *plan);
  CHECK(plan->moves.size() == 1);
  CHECK(plan->moves[0].host != 0);
  CHECK(plan->place.front() == std::pair(0u, 0u));
}

TEST_CASE("a lease on several hosts moves one part at a time") {
  Floor floor(2, false);
  for (int i = 0; i < 4; ++i) floor.host(1);
  floor.lease(0, {0}, 500), floor.lease(1, {0}, 500);
  floor.lease(2, {0}, 500, false), floor.lease(3, {0}, 500, false);
  REQUIRE(floor.plan());
  floor.parts[1].lease = floor.parts[0].lease;
  CHECK_FALSE(floor.plan());
}

TEST_CASE("shares move to GPUs of the same kind and at least the same size") {
  Floor floor(2);
  floor.host(2), floor.host(2);
  floor.lease(0, {0}), floor.lease(1, {0}, 1000, false);
  CHECK(floor.plan());
  floor.hosts[1].gpus[1].kind = 1;
  CHECK_FALSE(floor.plan());
  floor.hosts[1].gpus[1].kind = 0;
  floor.hosts[1].gpus[1].size = floor.hosts[1].gpus[1].memory = 32 * kGib;
  CHECK(floor.plan());
  floor.hosts[1].gpus[1].size = floor.hosts[1].gpus[1].memory = 8 * kGib;
  CHECK_FALSE(floor.plan());
}

TEST_CASE("processors and the hosts' state are respected") {
  Floor floor(1);
  floor.request.cpu_milli = 4000;
  floor.host(2, 3000), floor.host(1, 3000);
  floor.lease(0, {0}).cpu_milli = 2000;
  const auto plan = floor.plan();  // GPU 1 of host 0 is free, but not enough processors
  REQUIRE(plan);
  check_plan(floor, *plan);
  CHECK(plan->place[0].first == 0);
  floor.hosts[1].cpu_milli = 1000;
  CHECK_FALSE(floor.plan());
  floor.hosts[1].cpu_milli = 3000;
  floor.hosts[0].for_request = false;
  CHECK_FALSE(floor.plan());
  floor.hosts[0].for_request = true;
  floor.hosts[1].for_moves = false;
  CHECK_FALSE(floor.plan());
}

namespace {

Floor random_floor(std::mt19937_64& random, int hosts, int gpus_of_host, bool small) {
  const auto below = [&](uint64_t most) { return static_cast<int>(random() % most); };
  constexpr int kMilli[] = {1000, 500, 250, 700, 300, 1000};
  Floor floor(1 + below(static_cast<uint64_t>(gpus_of_host)), below(2) == 0, kMilli[below(6)]);
  floor.request.cpu_milli = below(3) == 0 ? 1000 * below(8) : 0;
  for (int i = 0; i < hosts; ++i) {
    const uint32_t host = floor.host(gpus_of_host, 16'000);
    for (DefragGpu& gpu : floor.hosts[host].gpus) gpu.kind = small ? 0 : host % 3;
    for (int lease = 0; lease < gpus_of_host * 2; ++lease) {
      const int milli = kMilli[below(6)];
      std::vector<uint32_t> on;
      const int wanted = milli == 1000 && below(4) == 0 ? 2 : 1;
      for (uint32_t gpu = 0; gpu < floor.hosts[host].gpus.size() && static_cast<int>(on.size()) < wanted;
           ++gpu) {
        if (below(3) != 0 && floor.hosts[host].gpus[gpu].milli >= milli) on.push_back(gpu);
      }
      const int64_t cpu = 1000 * below(3);
      if (static_cast<int>(on.size()) < wanted || floor.hosts[host].cpu_milli < cpu) continue;
      RunningPart& part = floor.lease(host, on, milli, below(4) != 0);
      part.cpu_milli = cpu;
      floor.hosts[host].cpu_milli -= cpu;
      part.seconds = 1 + below(40);
      part.remaining = below(4000);
      if (below(8) == 0) part.excluded = {static_cast<uint32_t>(below(static_cast<uint64_t>(hosts)))};
    }
  }
  return floor;
}

double cpu_milliseconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

// True if some single move makes the request fit and costs less than it brings.
bool single_move_suffices(const Floor& floor) {
  for (uint32_t index = 0; index < floor.parts.size(); ++index) {
    const RunningPart& part = floor.parts[index];
    if (!part.movable ||
        part.cost() >= floor.request.gpus * floor.request.milli / 1000 * (floor.wait() - part.seconds))
      continue;
    Floor after = floor;
    for (const auto& share : part.shares) {
      after.hosts[part.host].gpus[share.gpu].milli += share.milli;
      after.hosts[part.host].gpus[share.gpu].memory += share.memory;
    }
    after.hosts[part.host].cpu_milli += part.cpu_milli;
    for (DefragHost& host : after.hosts) host.for_request = &host == &after.hosts[part.host];
    if (after.wait() != 0) continue;
    for (uint32_t host = 0; host < floor.hosts.size(); ++host) {
      if (host == part.host || floor.hosts[host].cpu_milli < part.cpu_milli ||
          std::count(part.excluded.begin(), part.excluded.end(), host) > 0)
        continue;
      size_t room = 0;
      for (const DefragGpu& gpu : floor.hosts[host].gpus)
        room += gpu.milli >= part.shares[0].milli && gpu.memory >= part.shares[0].memory;
      if (room >= part.shares.size()) return true;
    }
  }
  return false;
}

}  // namespace

TEST_CASE("random pools: plans are sound, and no single move is missed") {
  std::mt19937_64 random(1);
  int plans = 0, several = 0, singles = 0;
  for (int round = 0; round < 3000; ++round) {
    INFO("round " << round);
    const Floor floor = random_floor(random, 2 + round % 5, 1 + round % 4, true);
    const auto plan = floor.plan();
    if (plan) {
      check_plan(floor, *plan);
      ++plans;
      several += plan->moves.size() > 1;
    }
    if (!floor.request.one_host || floor.wait() == 0 || !single_move_suffices(floor)) continue;
    ++singles;
    CHECK(plan);
  }
  CHECK(plans > 100);
  CHECK(several > 20);
  CHECK(singles > 50);
}

TEST_CASE("10,000 GPUs are searched within the limit of work") {
  std::mt19937_64 random(2);
  double most = 0;
  int plans = 0;
  for (int round = 0; round < 6; ++round) {
    Floor floor = random_floor(random, 1250, 8, false);
    floor.request.gpus = 8;
    floor.request.one_host = round % 3 != 0;
    const double start = cpu_milliseconds();
    const auto plan = floor.plan();
    most = std::max(most, cpu_milliseconds() - start);
    plans += plan.has_value();
    if (plan) check_plan(floor, *plan);
  }
  std::printf("10,000 GPUs: at most %.1f ms of CPU time, %d of 6 with a plan\n", most, plans);
  CHECK(most < 1000);  // detects only large slowdowns: sanitizers are slower
}
