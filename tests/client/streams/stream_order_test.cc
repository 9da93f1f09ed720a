// Tests which stream is ordered after which free, according to events and waits.
#include "client/streams/stream_order.h"

#include <random>
#include <set>

#include "tests/support/catch.h"

using namespace gpupool::client;

namespace {

constexpr uint64_t kContext = 1, kOther = 2;
constexpr uint64_t kA = 10, kB = 11, kC = 12, kEvent = 20;

struct Order : StreamOrder {
  FreePoint free(uint64_t stream, uint64_t context = kContext) { return freed(stream, context, context); }
  void record(uint64_t event, uint64_t stream) {
    const Points points = reach(stream);
    begin_record(event);
    end_record(event, points);
  }
  void wait(uint64_t stream, uint64_t event) { waits(stream, of_event(event).points); }
};

}  // namespace

TEST_CASE("stream order: an event orders a stream after the frees before its record") {
  Order order;
  const FreePoint before = order.free(kA);
  order.record(kEvent, kA);
  const FreePoint after = order.free(kA);
  CHECK_FALSE(order.is_ordered_after(kB, before));
  order.wait(kB, kEvent);
  CHECK(order.is_ordered_after(kB, before));
  CHECK_FALSE(order.is_ordered_after(kB, after));
  CHECK_FALSE(order.is_ordered_after(kC, before));
  CHECK_FALSE(order.is_passed(before));
}

TEST_CASE("stream order: events pass on what their stream has waited for") {
  Order order;
  const FreePoint point = order.free(kA);
  order.record(kEvent, kA);
  order.wait(kB, kEvent);
  order.record(kEvent + 1, kB);
  order.wait(kC, kEvent + 1);
  CHECK(order.is_ordered_after(kC, point));
}

TEST_CASE("stream order: waiting for a stream or a context passes its earlier frees") {
  Order order;
  const FreePoint one = order.free(kA), foreign = order.free(kC, kOther);
  const auto of_stream = order.reach(kA);
  const FreePoint later = order.free(kA), other = order.free(kB);
  order.passed(of_stream);
  CHECK(order.is_passed(one));
  CHECK_FALSE(order.is_passed(later));
  CHECK(order.unpassed().size() == 3);
  order.passed(order.reach_context(kContext));
  CHECK(order.is_passed(later));
  CHECK(order.is_passed(other));
  CHECK_FALSE(order.is_passed(foreign));
}

TEST_CASE("stream order: an event's last record counts") {
  Order order;
  const FreePoint point = order.free(kA);
  order.record(kEvent, kA);
  const auto seen = order.of_event(kEvent);
  CHECK_FALSE(order.is_recorded_anew(kEvent, seen));
  order.record(kEvent, kB);
  CHECK(order.is_recorded_anew(kEvent, seen));
  order.wait(kC, kEvent);
  CHECK_FALSE(order.is_ordered_after(kC, point));
}

TEST_CASE("stream order: trusts no event during a record or after an unknown record") {
  Order order;
  (void)order.free(kA);
  const auto points = order.reach(kA);
  order.begin_record(kEvent);
  CHECK(order.of_event(kEvent).points.empty());
  SECTION("two at a time") {
    order.begin_record(kEvent);
    order.end_record(kEvent, points);
    order.end_record(kEvent, points);
    CHECK(order.of_event(kEvent).points.empty());
    order.record(kEvent, kA);
    CHECK(order.of_event(kEvent).points.size() == 1);
  }
  SECTION("invalidated until it is destroyed") {
    order.invalidate_event(kEvent);
    order.end_record(kEvent, points);
    CHECK(order.of_event(kEvent).points.empty());
    order.forget_event(kEvent);
    order.record(kEvent, kA);
    CHECK(order.of_event(kEvent).points.size() == 1);
  }
  SECTION("destroyed meanwhile") {
    order.forget_event(kEvent);
    order.end_record(kEvent, points);
    CHECK(order.of_event(kEvent).points.empty());
  }
}

TEST_CASE(
    "stream order: keeps a destroyed stream until its frees have passed and drops it with its context") {
  Order order;
  const FreePoint a = order.free(kA), b = order.free(kB, kOther);
  order.stream_destroyed(kA);
  CHECK_FALSE(order.is_passed(a));
  order.passed(order.reach_context(kContext));
  CHECK(order.is_passed(a));
  CHECK_FALSE(order.is_passed(b));
  order.context_destroyed(kOther);
  CHECK(order.is_passed(b));
  CHECK(order.unpassed().empty());
}

TEST_CASE("stream order: keeps nothing for a program without frees") {
  Order order;
  CHECK_FALSE(order.active());
  CHECK(order.reach(kA).empty());
  CHECK(order.is_passed({kA, 5}));
}

// The model: for each stream the set of frees that precede its next operation, propagated by events, and the
// set of frees that the host knows to be complete.
TEST_CASE("stream order: random programs match the model") {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    const auto any = [&](unsigned below) { return static_cast<uint64_t>(random() % below); };
    Order order;
    std::map<uint64_t, std::set<uint64_t>> behind, of_event;  // values: times of frees
    std::set<uint64_t> done;
    std::map<uint64_t, FreePoint> frees;
    for (int step = 0; step < 400; ++step) {
      const uint64_t stream = kA + any(4), event = kEvent + any(3);
      switch (any(6)) {
        case 0:
        case 1: {
          const FreePoint point = order.free(stream);
          frees[point.time] = point;
          behind[stream].insert(point.time);
          break;
        }
        case 2:
          order.record(event, stream);
          of_event[event] = behind[stream];
          break;
        case 3:
          order.wait(stream, event);
          behind[stream].insert(of_event[event].begin(), of_event[event].end());
          break;
        case 4:
          if (any(4) == 0) {
            order.passed(order.reach(stream));
            done.insert(behind[stream].begin(), behind[stream].end());
          }
          break;
        case 5:
          if (any(4) == 0) {
            order.passed(order.of_event(event).points);
            done.insert(of_event[event].begin(), of_event[event].end());
          }
          break;
      }
      for (const auto& [time, point] : frees) {
        CHECK(order.is_passed(point) == done.contains(time));
        for (uint64_t other = kA; other < kA + 4; ++other) {
          if (other == point.stream || done.contains(time))
            continue;  // only asked about other streams and incomplete frees
          CHECK(order.is_ordered_after(other, point) == behind[other].contains(time));
        }
      }
    }
  }
}
