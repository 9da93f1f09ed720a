// Tests the shares of a GPU that the arbiter gives to sessions, with a simulated device and clock.
#include "server/quota/arbiter.h"

#include <algorithm>
#include <cmath>

#include "tests/support/catch.h"

#if __has_include(<catch2/catch_all.hpp>)
using Catch::Approx;
#endif
using namespace gpupool::quota;
using Time = Arbiter::Time;
using Turn = Arbiter::Turn;
using namespace std::chrono_literals;

namespace {

// Simulated clients, always or sometimes busy, each with kernels of one duration, on a device that runs one
// kernel at a time.
struct Client {
  Arbiter::Session session;
  Time kernel = 1ms;
  bool busy = true;
  Time used{};
};

class Device {
 public:
  explicit Device(Arbiter& arbiter) : arbiter_(arbiter) {}
  Client& add(Arbiter::Session session, const std::string& tenant, Time kernel = 1ms) {
    arbiter_.add(session, tenant, now_);
    Client client;
    client.session = session;
    client.kernel = kernel;
    return clients_.emplace(session, client).first->second;
  }
  void remove(Arbiter::Session session) {
    arbiter_.remove(session, now_);
    clients_.erase(session);
    if (running_ == session) running_.reset();
  }
  void run(Time time) {
    const Time end = now_ + time;
    while (now_ < end) step(end);
  }
  // Runs for `time` and returns the session's share of it, in percent.
  double percent(Arbiter::Session session, Time time) {
    const Time before = clients_.at(session).used;
    run(time);
    return 100.0 * static_cast<double>((clients_.at(session).used - before).count()) /
           static_cast<double>(time.count());
  }
  Time now() const { return now_; }

 private:
  // Lets the clients request and return their turns at the current time.
  void talk() {
    for (auto& [session, client] : clients_) {
      if (arbiter_.turn(session).state == Turn::State::closed) arbiter_.want(session, client.busy, now_);
    }
    while (const auto holder = arbiter_.holder()) {
      const Turn turn = arbiter_.turn(*holder);
      const bool busy = clients_.at(*holder).busy;
      if (running_ == holder || !(turn.state == Turn::State::yield || (turn.wanted && !busy))) return;
      arbiter_.release(*holder, busy, now_);
    }
  }
  void step(Time end) {
    talk();
    if (!running_ && arbiter_.holder()) {
      Client& holder = clients_.at(*arbiter_.holder());
      if (holder.busy && arbiter_.turn(holder.session).state == Turn::State::open) {
        running_ = holder.session;
        finished_ = now_ + holder.kernel;
      }
    }
    Time next = end;
    if (running_) next = std::min(next, finished_);
    if (arbiter_.due()) next = std::min(next, std::max(*arbiter_.due(), now_ + 1us));
    const Time passed = next - now_;
    now_ = next;
    if (running_) {
      Client& client = clients_.at(*running_);
      client.used += passed;
      if (now_ >= finished_) {
        running_.reset();
        arbiter_.report(client.session, client.used, now_);
      }
    }
    arbiter_.tick(now_);
  }

  Arbiter& arbiter_;
  std::map<Arbiter::Session, Client> clients_;
  std::optional<Arbiter::Session> running_;
  Time finished_{};
  Time now_{1s};
};

Arbiter::Share elastic(double percent) {
  return {static_cast<uint32_t>(std::lround(10 * percent)), Mode::elastic, Priority::normal};
}
Arbiter::Share hard(double percent) {
  return {static_cast<uint32_t>(std::lround(10 * percent)), Mode::hard, Priority::normal};
}
Arbiter::Share of(Priority priority) {
  return {kWholeGpu, Mode::elastic, priority};
}

auto near(double wanted, double off = 1) {
  return Approx(wanted).margin(off).epsilon(0);
}

}  // namespace

TEST_CASE("busy tenants get their shares") {
  const auto weights = GENERATE(as<std::vector<double>>{}, std::vector<double>{10, 90},
                                std::vector<double>{25, 75}, std::vector<double>{50, 50},
                                std::vector<double>{10, 20, 30, 40}, std::vector<double>{0.5, 12.5, 87});
  const Time kernel = GENERATE(Time(100us), Time(1ms), Time(7ms));
  Arbiter arbiter;
  Device device(arbiter);
  for (size_t i = 0; i < weights.size(); ++i) {
    arbiter.set_share(std::to_string(i), elastic(weights[i]), device.now());
    device.add(i, std::to_string(i), kernel);
  }
  for (size_t i = 0; i < weights.size(); ++i) {
    INFO(i << " of " << weights.size() << " with kernels of " << kernel.count() << " ns");
    CHECK(device.percent(i, 10s) == near(weights[i]));
  }
}

TEST_CASE("kernels of different length do not change the shares") {
  Arbiter arbiter;
  Device device(arbiter);
  arbiter.set_share("long", elastic(30), device.now());
  arbiter.set_share("short", elastic(70), device.now());
  device.add(1, "long", 60ms);
  device.add(2, "short", 100us);
  CHECK(device.percent(1, 10s) == near(30));
}

TEST_CASE("a tenant's share is divided among its sessions") {
  Arbiter arbiter;
  Device device(arbiter);
  arbiter.set_share("one", elastic(50), device.now());
  arbiter.set_share("three", elastic(50), device.now());
  device.add(1, "one");
  for (Arbiter::Session session = 2; session <= 4; ++session) device.add(session, "three");
  CHECK(device.percent(1, 10s) == near(50));
  CHECK(device.percent(3, 10s) == near(50.0 / 3));
}

TEST_CASE("a hard limit holds in every second for a session that is alone") {
  Arbiter arbiter;
  Device device(arbiter);
  const double limit = GENERATE(0.4, 1.0, 5.0, 20.0, 60.0);
  const Time kernel = GENERATE(Time(100us), Time(1ms), Time(4ms));
  arbiter.set_share("a", hard(limit), device.now());
  device.add(1, "a", kernel);
  const double late =
      100.0 * static_cast<double>(kernel.count()) / 1e9;  // a kernel that runs past the end of the second
  device.run(1s);
  for (int second = 0; second < 10; ++second) {
    const double percent = device.percent(1, 1s);
    INFO(limit << " %, kernels of " << kernel.count() << " ns, second " << second);
    CHECK(percent <= limit + 2 * late + 0.5 * limit / 20.0);
    CHECK(percent >= 0.9 * limit - 2 * late);
  }
  const double percent = device.percent(1, 10s);
  CHECK(percent <= limit + 0.1);
  CHECK(percent >= 0.94 * limit - 0.1);
}

TEST_CASE("a hard limit is kept by a tenant's sessions together") {
  Arbiter arbiter;
  Device device(arbiter);
  arbiter.set_share("a", hard(20), device.now());
  device.add(1, "a");
  device.add(2, "a");
  CHECK(device.percent(1, 10s) == near(9.75, 0.7));
  CHECK(device.percent(2, 10s) == near(9.75, 0.7));
}

TEST_CASE("time left over by a hard limit goes to other tenants") {
  Arbiter arbiter;
  Device device(arbiter);
  arbiter.set_share("a", hard(20), device.now());
  arbiter.set_share("b", elastic(10), device.now());
  device.add(1, "a");
  device.add(2, "b");
  CHECK(device.percent(1, 10s) == near(19.5));
  CHECK(device.percent(2, 10s) == near(80.5));
}

TEST_CASE("a long kernel is compensated by later turns") {
  Arbiter arbiter;
  Device device(arbiter);
  arbiter.set_share("a", hard(20), device.now());
  Client& client = device.add(1, "a", 400ms);
  device.run(500ms);
  CHECK(client.used >= 400ms);
  client.kernel = 1ms;
  const Time before = client.used;
  device.run(1400ms);  // 400 ms are two seconds of its share
  CHECK(client.used - before <= 2ms);
  CHECK(device.percent(1, 10s) == near(19.5, 0.7));
}

TEST_CASE("an idle share is lent and taken back") {
  Arbiter arbiter;
  Device device(arbiter);
  arbiter.set_share("a", elastic(20), device.now());
  arbiter.set_share("b", elastic(80), device.now());
  device.add(1, "a");
  Client& b = device.add(2, "b");
  b.busy = false;
  device.run(100ms);
  CHECK(device.percent(1, 5s) == near(100));
  b.busy = true;
  CHECK(device.percent(2, 40ms) > 50);  // takes effect at once
  CHECK(device.percent(2, 5s) == near(80));
  b.busy = false;
  CHECK(device.percent(1, 1s) == near(100, 0.5));
}

TEST_CASE("an idle tenant accumulates no credit") {
  Arbiter arbiter;
  Device device(arbiter);
  arbiter.set_share("a", elastic(50), device.now());
  arbiter.set_share("b", elastic(50), device.now());
  device.add(1, "a");
  Client& b = device.add(2, "b");
  device.run(1s);
  b.busy = false;
  device.run(60s);
  b.busy = true;
  CHECK(device.percent(1, 1s) == near(50, 4));
  Client& c = device.add(3, "a");  // a new session of the tenant has no credit either
  c.busy = true;
  CHECK(device.percent(1, 2s) == near(25, 2));
}

TEST_CASE("a tenant with short pauses keeps its share") {
  Arbiter arbiter;
  Device device(arbiter);
  arbiter.set_share("a", elastic(25), device.now());
  arbiter.set_share("b", elastic(75), device.now());
  device.add(1, "a");
  Client& b = device.add(2, "b");
  const Time begin = device.now(), before = b.used;
  while (device.now() < begin + 10s) {
    b.busy = true;
    device.run(170ms);
    b.busy = false;
    device.run(30ms);
  }
  CHECK(100.0 * static_cast<double>((b.used - before).count()) / 10e9 == near(75, 2));
}

TEST_CASE("priorities are strict and preempt at once") {
  Arbiter arbiter;
  Device device(arbiter);
  arbiter.set_share("low", of(Priority::best_effort), device.now());
  arbiter.set_share("middle", of(Priority::normal), device.now());
  arbiter.set_share("high", of(Priority::latency_critical), device.now());
  device.add(1, "low");
  Client& middle = device.add(2, "middle");
  Client& high = device.add(3, "high");
  CHECK(arbiter.turn(1).single);
  CHECK(arbiter.turn(2).single);
  CHECK_FALSE(arbiter.turn(3).single);
  CHECK(device.percent(3, 2s) == near(100));
  high.busy = false;
  device.run(5ms);
  CHECK(device.percent(2, 2s) == near(100));
  middle.busy = false;
  device.run(5ms);
  CHECK(device.percent(1, 2s) == near(100));
  high.busy = true;
  const Time before = high.used;
  device.run(3ms);  // covers one running kernel, but no quantum
  CHECK(high.used - before >= 1900us);
}

TEST_CASE("a turn ends when its holder is gone") {
  Arbiter arbiter;
  Device device(arbiter);
  device.add(1, "a", 10s);
  device.run(10ms);
  device.add(2, "b");
  device.run(5ms);
  REQUIRE(arbiter.holder() == 1);
  device.remove(1);
  CHECK(arbiter.holder() == 2);
  CHECK(device.percent(2, 1s) == near(100));
}

TEST_CASE("a turn that is not given back is revoked") {
  Arbiter::Settings settings;
  settings.yield_timeout = 300ms;
  Arbiter arbiter(settings);
  Time now = 1s;
  arbiter.add(1, "a", now);
  arbiter.add(2, "b", now);
  arbiter.want(1, true, now);
  CHECK(arbiter.turn(1).state == Turn::State::open);
  arbiter.want(2, true, now);
  CHECK(arbiter.turn(1).state == Turn::State::yield);
  REQUIRE(arbiter.due() == now + 300ms);
  arbiter.tick(now + 299ms);
  CHECK(arbiter.turn(2).state == Turn::State::closed);
  now += 300ms;
  arbiter.tick(now);
  CHECK(arbiter.turn(1).state == Turn::State::closed);
  CHECK(arbiter.turn(2).state == Turn::State::open);
  // Work outside a turn is charged when it is reported; then a has used far more than b.
  now += 10ms;
  arbiter.want(1, true, now);
  now += 1s;
  arbiter.report(1, 2s, now);
  arbiter.release(2, true, now);
  CHECK(arbiter.turn(2).state == Turn::State::open);
}

TEST_CASE("reported use is capped by the elapsed time") {
  Arbiter arbiter;
  Device device(arbiter);
  device.add(1, "a");
  device.add(2, "b");
  device.run(1s);
  arbiter.report(1, Time::max(), device.now());
  arbiter.report(2, Time::min(), device.now());
  device.run(1200ms);  // about the difference that was reported
  CHECK(device.percent(1, 1s) == near(50, 2));
}

TEST_CASE("shares change while clients run") {
  Arbiter arbiter;
  Device device(arbiter);
  arbiter.set_share("a", elastic(50), device.now());
  arbiter.set_share("b", elastic(50), device.now());
  device.add(1, "a");
  device.add(2, "b");
  CHECK(device.percent(1, 5s) == near(50));
  arbiter.set_share("a", elastic(10), device.now());
  arbiter.set_share("b", elastic(90), device.now());
  CHECK(device.percent(1, 5s) == near(10));
  arbiter.set_share("b", hard(30), device.now());
  CHECK(device.percent(2, 5s) == near(29.2, 0.9));
  arbiter.set_share("b", of(Priority::latency_critical), device.now());
  CHECK(device.percent(2, 1s) == near(100, 1.5));
  arbiter.set_share("b", elastic(10), device.now());
  CHECK(device.percent(2, 5s) == near(50));
}

TEST_CASE("a session that is alone and without a limit is never asked to yield") {
  Arbiter arbiter;
  Device device(arbiter);
  device.add(1, "a");
  device.run(1s);
  CHECK(arbiter.turn(1) == Turn{Turn::State::open, false, false, false});
  CHECK_FALSE(arbiter.due());
}
