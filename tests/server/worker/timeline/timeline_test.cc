// Tests who gets a timeline's records, over a device that does not tell times.
#include "protocol/wire/timeline.h"

#include "server/worker/session/session_start.h"
#include "tests/server/worker/test_client.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::worker;
using namespace gpupool::worker::test;
using wire::Command;

namespace {

class RecordedClient : public TestClient {
 public:
  RecordedClient()
      : TestClient(false, nullptr, 0, false, nullptr, true, {}, {},
                   [](SessionStart& start) { start.wants_timeline = true; }) {
    retain();
    create_stream(0);
    std::vector<std::string> none;
    flush(none);  // begins the records
    CHECK(none.empty());
  }
  // Asks for the clock and everything before it. Returns the last message's head; `texts` gets the texts of
  // streams' waits. (On a busy machine the worker's threads wait, too.)
  wire::TimelineBatch flush(std::vector<std::string>& texts) {
    const uint64_t question = send(Command::read_clock, bytes_of(wire::ReadClock{wire::kFlushTimeline, 0}));
    while (true) {
      const Message message = receive();
      if (message.header.kind != wire::MessageKind::timeline) continue;
      CHECK(message.body.size() <= wire::kMostTimelineBytes);
      const auto batch = message.as<wire::TimelineBatch>();
      size_t at = sizeof batch;
      for (uint32_t i = 0; i < batch.records; ++i) {
        const auto record = message.as<wire::TimelineRecord>(at);
        at += sizeof record;
        if (record.kind == wire::TimelineKind::stream_wait)
          texts.push_back(message.text().substr(at, record.text_bytes));
        at += record.text_bytes;
      }
      CHECK(at == message.body.size());
      if (batch.answers == question) return batch;
    }
  }
};

}  // namespace

TEST_CASE("a client that did not ask for a timeline gets none") {
  TestClient client;
  client.retain();
  client.create_stream(0);
  client.map(0, FakeDriver::kGranularity);
  client.copy_in(stream_handle(0), 0, pattern(1000, 1));
  CHECK(client.ask(Command::read_clock, bytes_of(wire::ReadClock{})) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(client.silent(50));
  CHECK(client.finish() == 0);
}

TEST_CASE("nothing is recorded or sent before the client asks for the clock") {
  TestClient client(false, nullptr, 0, false, nullptr, true, {}, {},
                    [](SessionStart& start) { start.wants_timeline = true; });
  client.retain();
  client.create_stream(0);
  client.map(0, FakeDriver::kGranularity);
  client.copy_in(stream_handle(0), 0, pattern(1000, 1));
  CHECK(client.silent(50));
  CHECK(client.finish() == 0);
}

TEST_CASE("a stream that waits for the client is recorded with the reason") {
  RecordedClient client;
  client.send(Command::hold_stream, bytes_of(wire::HoldStream{stream_handle(0), 7}));
  client.send(Command::resume_stream, bytes_of(wire::ResumeStream{7}));
  std::vector<std::string> texts;
  const auto batch = client.flush(texts);
  CHECK(batch.clock != 0);
  CHECK(batch.received <= batch.sent);
  CHECK(batch.dropped == 0);
  REQUIRE(texts.size() == 1);
  CHECK(!texts.front().empty());
  CHECK(client.finish() == 0);
}

TEST_CASE("work whose time the device does not tell is counted and leaves nothing behind") {
  RecordedClient client;
  client.map(0, FakeDriver::kGranularity);
  for (unsigned i = 0; i < 5; ++i) client.copy_in(stream_handle(0), 0, pattern(1000, i));
  std::vector<std::string> texts;
  CHECK(client.flush(texts).dropped == 5);
  CHECK(client.finish() == 0);
  CHECK(client.fake.event_count() == 0);
  CHECK(client.fake.streams_alive() == 0);
}

TEST_CASE("a session ends while recorded work is unfinished") {
  RecordedClient client;
  client.map(0, FakeDriver::kGranularity);
  client.fake.hold(0);
  client.copy_in(stream_handle(0), 0, pattern(1000, 1));
  std::vector<std::string> texts;
  CHECK(client.flush(texts).dropped == 0);
  client.fake.let_go(0);
  CHECK(client.finish() == 0);
  CHECK(client.fake.event_count() == 0);
}
