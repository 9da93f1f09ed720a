// Clients of earlier versions: what they have sent, recorded in transcripts/VERSION/SCENARIO.bin, is sent to
// this server, whose answers must be those of the server that it was recorded with. A transcript is never
// changed; a new version adds its own:
//
//     GPUPOOL_RECORD=tests/e2e/transcripts/VERSION build/release/tests/e2e_transcripts_test "[.record]"
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <utility>
#include <vector>

#include "common/sanitizers.h"
#include "protocol/wire/frame.h"
#include "tests/e2e/pool.h"
#include "tests/support/catch.h"
#include "tests/support/proxy.h"
#include "tests/support/raw_client.h"
#include "tests/support/skip.h"

using namespace gpupool;
using namespace gpupool::testing;
namespace fs = std::filesystem;

namespace {

// They send no address that the server has chosen.
const char* const kScenarios[] = {"captured_graph",      "captured_launch_attributes",
                                  "destroyed_texture",   "graph_by_hand",
                                  "graph_memory_nodes",  "green_contexts",
                                  "reset_and_use_again", "short_life",
                                  "threads_come_and_go", "two_contexts"};
// So that the client acknowledges nothing, and proves nothing about a number of this server's.
const std::vector<std::string> kPlain{"--resume-timeout", "0", "--image-cache-mib", "0"};

using Passed = Proxy::Passed;
using Transcript = std::vector<Passed>;

struct Answer {
  int32_t result = 0;
  std::string data;       // of a copy from the device
  size_t body_bytes = 0;  // of a reply
  bool operator==(const Answer&) const = default;
};
struct Answers {
  std::map<uint64_t, Answer> by_command;  // by sequence number
  size_t replies = 0, callbacks = 0;

  void take(const wire::MessageHeader& header, std::string_view body) {
    if (header.kind == wire::MessageKind::reply) {
      ++replies;
      by_command[header.sequence].result = header.result;
      by_command[header.sequence].body_bytes = body.size();
    }
    if (header.kind == wire::MessageKind::host_callback) ++callbacks;
    if (header.kind == wire::MessageKind::device_data) by_command[header.sequence].data += body;
  }
};

std::ostream& operator<<(std::ostream& out, const Answer& answer) {
  return out << "result " << answer.result << ", body of " << answer.body_bytes << " bytes, data of "
             << answer.data.size() << " bytes";
}

// Takes the messages out of what a server sends, which begins with its HelloReply.
class Messages {
 public:
  void add(std::string_view bytes, Answers& answers) {
    bytes_ += bytes;
    wire::Preamble preamble;
    if (!greeted_ && bytes_.size() >= sizeof preamble) {
      std::memcpy(&preamble, bytes_.data(), sizeof preamble);
      if (bytes_.size() < sizeof preamble + preamble.length) return;
      bytes_.erase(0, sizeof preamble + preamble.length);
      greeted_ = true;
    }
    wire::MessageHeader header;
    while (greeted_ && bytes_.size() >= sizeof header) {
      std::memcpy(&header, bytes_.data(), sizeof header);
      if (bytes_.size() - sizeof header < header.length) return;
      answers.take(header, std::string_view(bytes_).substr(sizeof header, header.length));
      bytes_.erase(0, sizeof header + header.length);
    }
  }

 private:
  std::string bytes_;
  bool greeted_ = false;
};

// A file has, for each part, whether the server has sent it (u8), its length (u32), and its bytes.
void write(const fs::path& file, const Transcript& transcript) {
  std::ofstream out(file, std::ios::binary);
  for (const Passed& part : transcript) {
    const auto size = static_cast<uint32_t>(part.bytes.size());
    out.put(part.from_server ? 1 : 0);
    out.write(reinterpret_cast<const char*>(&size), sizeof size);
    out << part.bytes;
  }
}

Transcript read(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  Transcript transcript;
  for (char from_server = 0; in.get(from_server);) {
    uint32_t size = 0;
    in.read(reinterpret_cast<char*>(&size), sizeof size);
    std::string bytes(size, '\0');
    in.read(bytes.data(), size);
    REQUIRE(in.good());
    transcript.push_back({from_server != 0, std::move(bytes)});
  }
  return transcript;
}

// Sends what the client has sent, each part when what it had received then is there, and compares the
// server's answers.
void expect_same(Pool& pool, const Transcript& transcript) {
  RawClient client(pool.poold().endpoint());
  Messages messages;
  Answers recorded, now;
  bool greeted = false;
  for (const Passed& part : transcript) {
    if (!part.from_server) {
      client.send(part.bytes);
      continue;
    }
    messages.add(part.bytes, recorded);
    if (!std::exchange(greeted, true)) {
      const auto reply = client.receive_reply();
      INFO(reply.reason);
      REQUIRE(reply.status == hello::Status::ok);
    }
    while (now.replies < recorded.replies || now.callbacks < recorded.callbacks) {
      const Message message = client.receive_message();
      INFO(message.body);
      REQUIRE(message.header.kind != wire::MessageKind::end);
      now.take(message.header, message.body);
    }
  }
  CHECK(recorded.replies > 0);
  CHECK(now.by_command.size() == recorded.by_command.size());
  for (const auto& [sequence, answer] : recorded.by_command) {
    INFO("command " << sequence);
    CHECK(now.by_command[sequence] == answer);
  }
}

Transcript record(const std::string& scenario) {
  Pool pool({}, kPlain);
  Proxy proxy(pool.poold().endpoint());
  proxy.record();
  const Finished app =
      run_patiently({driver_app(), scenario}, pool.through({{"GPUPOOL", proxy.url()},
                                                            {"GPUPOOL_SHM", "0"},
                                                            {"GPUPOOL_COMPRESSION", "off"},
                                                            {"GPUPOOL_BULK_CONNECTIONS", "0"}}));
  INFO(scenario << ": " << app.output);
  REQUIRE(app.status == 0);
  return proxy.recorded();
}

}  // namespace

TEST_CASE("clients of recorded versions are answered as they were") {
  if (kThreadSanitized) return report_skip("ThreadSanitizer has some of the recorded addresses");
  Pool pool({}, kPlain);
  size_t replayed = 0;
  for (const auto& file : fs::recursive_directory_iterator(GPUPOOL_TRANSCRIPTS)) {
    if (file.path().extension() != ".bin") continue;
    INFO(file.path());
    const Transcript transcript = read(file.path());
    expect_same(pool, transcript);
    ++replayed;
  }
  CHECK(replayed >= std::size(kScenarios));
}

TEST_CASE("a transcript of a client that the server does not understand is noticed") {
  Pool pool({}, kPlain);
  Transcript transcript = record("short_life");
  expect_same(pool, transcript);
  // The last command of the first part is lost.
  Passed& hello = transcript.front();
  hello.bytes.resize(hello.bytes.size() - 1);
  CHECK_THROWS(expect_same(pool, transcript));
}

TEST_CASE("transcripts are recorded", "[.record]") {
  const char* const folder = std::getenv("GPUPOOL_RECORD");
  REQUIRE(folder != nullptr);
  fs::create_directories(folder);
  for (const char* const scenario : kScenarios)
    write(fs::path(folder) / (std::string(scenario) + ".bin"), record(scenario));
}
