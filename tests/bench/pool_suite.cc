#include "tests/bench/pool_suite.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "tests/scheduler/service/clients.h"
#include "tests/scheduler/service/scheduler_process.h"

namespace gpupool::bench {
namespace {

using Clock = std::chrono::steady_clock;
using Kind = Target::Kind;
using namespace gpupool::testing;

constexpr int kConnections = 8;  // that the holders share
constexpr std::chrono::milliseconds kHeartbeat{2000};

struct Measured {
  double per_second = 0;
  std::vector<double> milliseconds;  // in order
  double at(double part) const { return milliseconds[static_cast<size_t>(std::ceil(part * static_cast<double>(milliseconds.size()))) - 1]; }
};

// So many holders, each of which gets a lease of one GPU and gives it back, over and over again.
Measured measure(const std::string& address, int holders, double seconds) {
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  for (int i = 0; i < std::min(holders, kConnections); ++i) channels.push_back(connect(address));
  const auto start = Clock::now();
  const auto warm = start + std::chrono::milliseconds(500);
  const auto end = warm + std::chrono::microseconds(static_cast<int64_t>(seconds * 1e6));
  std::mutex mutex;
  Measured measured;
  bool failed = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < holders; ++i) {
    threads.emplace_back([&, channel = channels[static_cast<size_t>(i) % channels.size()]] {
      std::vector<double> mine;
      for (auto now = Clock::now(); now < end; now = Clock::now()) {
        Clock::time_point granted{};
        Acquisition lease(channel, request_call(1, 1000), "", [&](const pool::AcquireEvent& event) {
          if (event.has_granted()) granted = Clock::now();
        });
        const bool good = lease.granted() != nullptr;
        lease.release();
        if (!good || !lease.status().ok()) {
          const std::lock_guard lock(mutex);
          failed = true;
          return;
        }
        if (now >= warm) mine.push_back(std::chrono::duration<double, std::milli>(granted - now).count());
      }
      const std::lock_guard lock(mutex);
      measured.milliseconds.insert(measured.milliseconds.end(), mine.begin(), mine.end());
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (failed || measured.milliseconds.empty()) throw std::runtime_error("a lease was not granted, or not given back");
  std::sort(measured.milliseconds.begin(), measured.milliseconds.end());
  measured.per_second = static_cast<double>(measured.milliseconds.size()) / seconds;
  return measured;
}

}  // namespace

std::vector<Figure> measure_pool(const PoolSuite& suite) {
  Samples samples;
  for (int round = 0; round < suite.rounds; ++round) {
    std::fprintf(stderr, "gpupool-bench: round %d of %d\n", round + 1, suite.rounds);
    SchedulerProcess scheduler;
    PretendedPoolds poolds(scheduler.address(), suite.poolds, suite.gpus, nullptr, kHeartbeat);
    if (!poolds.await()) throw std::runtime_error("not all poolds attend:\n" + scheduler.log());
    const Measured alone = measure(scheduler.address(), 1, suite.seconds);
    samples.add("alone_p50", alone.at(0.5));
    samples.add("alone_p99", alone.at(0.99));
    const Measured many = measure(scheduler.address(), suite.holders, suite.seconds);
    samples.add("per_second", many.per_second);
    samples.add("p50", many.at(0.5));
    samples.add("p99", many.at(0.99));
  }
  const std::string beside = std::to_string(suite.holders) + " holders at once";
  return {{"lease_grants", "grpc", samples.median("per_second"), "per second", beside, 0, {Kind::value_at_least, 2000}},
          {"lease_grant_p50", "grpc", samples.median("p50"), "ms", beside, 0},
          {"lease_grant_p99", "grpc", samples.median("p99"), "ms", beside, 0, {Kind::value_at_most, 10}},
          {"lease_grant_alone_p50", "grpc", samples.median("alone_p50"), "ms", "one holder", 0},
          {"lease_grant_alone_p99", "grpc", samples.median("alone_p99"), "ms", "one holder", 0, {Kind::value_at_most, 10}}};
}

}  // namespace gpupool::bench
