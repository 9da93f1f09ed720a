// Tests the events of a process and of its servers: hostile texts, many threads, bounds, malformed messages.
#include "client/timeline/recorder.h"

#include <cstring>
#include <future>
#include <memory>
#include <new>
#include <thread>

#include "client/timeline/server_track.h"
#include "tests/client/timeline/events.h"
#include "tests/support/catch.h"
#include "tests/support/processes.h"

using namespace gpupool;
using namespace gpupool::client::timeline;
using namespace gpupool::client::timeline::test;
using gpupool::testing::TemporaryFolder;

namespace {

// Like the client's, never destroyed: its thread is detached.
Recorder& make_recorder(const std::string& path, uint64_t limit = TraceFile::kUsualLimit) {
  auto file = TraceFile::open(path, limit);
  REQUIRE(file);
  return *new Recorder(std::move(*file), [](const std::string&) {});
}

const TraceEvent kLast{.phase = 'i', .name = "the end"};

std::vector<std::byte> message(wire::TimelineBatch batch, const std::vector<wire::TimelineRecord>& records,
                               const std::string& text = {}) {
  batch.records = static_cast<uint32_t>(records.size());
  std::vector<std::byte> bytes(sizeof batch);
  std::memcpy(bytes.data(), &batch, sizeof batch);
  for (wire::TimelineRecord record : records) {
    record.text_bytes = static_cast<uint16_t>(text.size());
    const auto* const first = reinterpret_cast<const std::byte*>(&record);
    bytes.insert(bytes.end(), first, first + sizeof record);
    const auto* const letters = reinterpret_cast<const std::byte*>(text.data());
    bytes.insert(bytes.end(), letters, letters + text.size());
  }
  return bytes;
}

// Answers the question `number` with a clock that is ahead by one hour.
constexpr int64_t kAhead = 3'600'000'000'000;
void answer(ServerTrack& track, uint64_t number) {
  track.asked(number);
  const auto there = static_cast<uint64_t>(now() + kAhead);
  REQUIRE(track.take(message({.clock = 1, .answers = number, .received = there, .sent = there}, {})));
  REQUIRE(track.answered() == number);
}

}  // namespace

TEST_CASE("hostile names are strings of JSON") {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "out.json";
  Recorder& recorder = make_recorder(path);
  const std::string names[] = {"\"},\n{\"",
                               "\\",
                               "a\x01\x1f\x7f\n\r\t",
                               "\xff\xfe\x80",
                               "\xe2\x80\xae reversed",
                               "</script>",
                               std::string(100'000, 'n'),
                               "kern\xc3\xa9l",
                               ""};
  for (const std::string& name : names) recorder.push({.name = recorder.intern(name)});
  recorder.finish(kLast);
  const auto read = events(path);
  REQUIRE(read.size() == std::size(names) + 1);
  CHECK(read[0].at("name") == "\"},?{\"");
  CHECK(read[1].at("name") == "\\");
  CHECK(read[6].at("name").get<std::string>().size() == Recorder::kLongestName);
  CHECK(read[7].at("name") == "kern\xc3\xa9l");
  CHECK(read.back().at("args").at("dropped_here") == 0);
}

TEST_CASE("events of many threads are in the file or counted") {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "out.json";
  Recorder& recorder = make_recorder(path);
  constexpr uint64_t kThreads = 8, kEach = 10'000;
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (uint64_t i = 0; i < kEach; ++i)
        recorder.push({.begin = static_cast<int64_t>(i), .name = "one", .track = thread});
    });
  }
  for (std::thread& thread : threads) thread.join();
  recorder.finish(kLast);
  recorder.push({.name = "late"});
  CHECK(count_named(path, "late") == 0);
  const uint64_t dropped = events(path).back().at("args").at("dropped_here");
  CHECK(count_named(path, "one") + dropped == kThreads * kEach);
}

TEST_CASE("a full file stays within its limit and says how much is missing") {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "out.json";
  Recorder& recorder = make_recorder(path, 300'000);
  for (int i = 0; i < 20'000; ++i) recorder.push({.name = "one"});
  recorder.finish(kLast);
  CHECK(content(path).size() <= 300'000);
  const uint64_t dropped = events(path).back().at("args").at("dropped_here");
  CHECK(dropped > 0);
  CHECK(count_named(path, "one") + dropped == 20'000);
}

TEST_CASE("recording that runs out of memory ends with one warning, and the program goes on") {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "out.json";
  auto file = TraceFile::open(path);
  REQUIRE(file);
  static std::promise<std::string> warned;  // a second warning throws
  Recorder& recorder =
      *new Recorder(std::move(*file), [](const std::string& text) { warned.set_value(text); });
  recorder.push({.name = "before"});
  recorder.on_look([] { throw std::bad_alloc(); });
  CHECK(warned.get_future().get() == "timeline: out of memory; later events are not recorded");
  recorder.push({.name = "after"});
  recorder.finish(kLast);
  CHECK(count_named(path, "before") == 1);
  CHECK(count_named(path, "after") == 0);
  CHECK(events(path).back().at("args").at("dropped_here") == 1);
}

TEST_CASE("names are bounded") {
  const TemporaryFolder folder;
  Recorder& recorder = make_recorder(folder.path() / "out.json");
  for (size_t i = 0; i < Recorder::kMostNames; ++i) (void)recorder.intern(std::to_string(i));
  CHECK(std::string(recorder.intern("7")) == "7");
  CHECK(std::string(recorder.intern("one more")) == "(too many names)");
  recorder.name_kernel(1, "add");
  CHECK(std::string(recorder.kernel_name(1)) == "add");
  CHECK(std::string(recorder.kernel_name(2)) == "(unknown kernel)");
}

TEST_CASE("a server's records have this host's times, and rows for their streams") {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "out.json";
  Recorder& recorder = make_recorder(path);
  recorder.name_kernel(0x77, "add(float*)");
  auto* const track = new ServerTrack(recorder, 1000, 1, "tcp://host:1");
  const auto begin = static_cast<uint64_t>(now() + kAhead);
  // Without a clock a record has no time.
  CHECK(track->take(message({.clock = 1}, {{.begin = begin}})));
  answer(*track, 5);
  const wire::TimelineRecord kernel{.begin = begin,
                                    .duration = 1000,
                                    .context = 1,
                                    .stream = 9,
                                    .subject = 0x77,
                                    .command = 12,
                                    .grid = {2'000'000'000, 3, 1},
                                    .block = {256, 1, 1},
                                    .flags = wire::kMeasuredByGpu};
  const wire::TimelineRecord copy{
      .begin = begin, .duration = 1, .subject = 4096, .kind = wire::TimelineKind::copy_to_device};
  const wire::TimelineRecord unknown{.begin = begin, .kind = static_cast<wire::TimelineKind>(999)};
  CHECK(track->take(message({.clock = 1, .dropped = 3, .gpu_error = 17}, {kernel, copy, unknown})));
  const wire::TimelineRecord wait{.begin = begin, .duration = 5, .kind = wire::TimelineKind::worker_wait};
  CHECK(track->take(message({.clock = 1, .dropped = 3, .gpu_error = 17}, {wait}, "its turn on the GPU")));
  track->finish();
  recorder.finish(kLast);
  bool found = false;
  for (const Json& event : events(path)) {
    if (event.at("name") == "add(float*)") {
      found = true;
      CHECK(event.at("cat") == "gpu");
      CHECK(event.at("args").at("grid") == "2000000000 x 3 x 1");
      const double there = event.at("ts").get<double>() * 1e3, here = static_cast<double>(begin) - kAhead;
      CHECK(std::abs(there - here) < 1e9);  // the clock was read within this test
    }
    if (event.at("name") == "worker waits") CHECK(event.at("args").at("for") == "its turn on the GPU");
    if (event.at("name") == "quality of the server's times") {
      CHECK(event.at("args").at("dropped_on_server") == 3);
      CHECK(event.at("args").at("gpu_error_ns") == 17);
    }
  }
  CHECK(found);
  CHECK(count_named(path, "copy to device") == 1);
  CHECK(count_named(path, "worker waits") == 1);
  CHECK(events(path).back().at("args").at("dropped_here") == 1);
}

TEST_CASE("a server's reasons for waits are bounded, and leave room for other names") {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "out.json";
  Recorder& recorder = make_recorder(path);
  auto* const track = new ServerTrack(recorder, 1000, 1, "tcp://host:1");
  answer(*track, 5);
  const wire::TimelineRecord wait{.begin = static_cast<uint64_t>(now() + kAhead),
                                  .kind = wire::TimelineKind::worker_wait};
  constexpr size_t kMany = ServerTrack::kMostReasons + 3;
  for (size_t i = 0; i < kMany; ++i) CHECK(track->take(message({.clock = 1}, {wait}, std::to_string(i))));
  recorder.finish(kLast);
  size_t others = 0;
  for (const Json& event : events(path))
    others += event.at("name") == "worker waits" && event.at("args").at("for") == "(other reasons)";
  CHECK(others == kMany - ServerTrack::kMostReasons);
}

TEST_CASE("malformed messages of a server are refused") {
  const TemporaryFolder folder;
  Recorder& recorder = make_recorder(folder.path() / "out.json");
  auto* const track = new ServerTrack(recorder, 1000, 1, "tcp://host:1");
  const auto good = message({.clock = 1}, {{}}, "text");
  CHECK(track->take(good));
  for (size_t size = 0; size < good.size(); ++size) {
    INFO(size);
    CHECK(!track->take(std::span(good).first(size)));
  }
  auto longer = good;
  longer.push_back(std::byte{0});
  CHECK(!track->take(longer));
  auto many = good;
  const uint32_t records = UINT32_MAX;
  std::memcpy(many.data() + offsetof(wire::TimelineBatch, records), &records, sizeof records);
  CHECK(!track->take(many));
  CHECK(!track->take(std::vector<std::byte>(wire::kMostTimelineBytes + 1)));
}
