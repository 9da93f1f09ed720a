// Fuzzes poold with clients that lock and checkpoint processes of their tenant, and with the workers that
// answer: any bytes at any time, including in the middle of a question and after the worker or the client has
// exited. The input is a sequence of calls.
//
// Each question must get one valid answer, an invalid question must end the connection, and no descriptor may
// leak.
#include <signal.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "protocol/wire/frame.h"
#include "server/poold/workers/checkpoints.h"
#include "tests/fuzz/fake_pool.h"
#include "tests/fuzz/input.h"

using namespace gpupool;
using namespace gpupool::server;

namespace {

constexpr int kTimes[] = {0, 1, 2, 5, 500, 5'001, 60'001};  // milliseconds

struct Asker {
  int end = -1;       // -1: closed by the client
  std::string heard;  // the incomplete last message
  uint64_t asked = 0, answered = 0;
  bool greeted = false, lost = false, honest = true;  // honest: has sent only valid questions
};

class Attack {
 public:
  explicit Attack(fuzz::Input input) : input_(input) {}

  void run() {
    pool_.all_say_ready();
    pool_.begin_session("a", 1);
    pool_.begin_session("a", 1);
    admit();
    for (int calls = 0; !input_.empty() && calls < 200; ++calls) {
      call();
      pool_.loop().settle();
      for (Asker& asker : askers_) hear(asker);
    }
    checkpoints_.close();
    for (Asker& asker : askers_) {
      hear(asker);
      if (!asker.lost) std::abort();
    }
    pool_.stop();
  }

 private:
  void call() {
    switch (input_.below(8)) {
      default: return ask();
      case 2: return write();
      case 3: return answer();
      case 4: return pool_.loop().pass(std::chrono::milliseconds(kTimes[input_.below(std::size(kTimes))]));
      case 5: return leave();
      case 6: return admit();
      case 7: {
        auto* const its = pool_.workers().at(input_.below(4));
        if (its && !its->ended()) pool_.workers().end(*its, SIGKILL);
        return;
      }
    }
  }

  Asker& asker() { return askers_[input_.below(static_cast<uint32_t>(askers_.size()))]; }

  void admit() {
    if (askers_.size() >= 8) return;
    Client client = pool_.new_client(input_.below(4) == 3 ? "b" : "a", 9);
    client.program = "asker";
    askers_.push_back({.end = pool_.client_end(pool_.client_ends() - 1)});
    checkpoints_.admit(std::move(client));
    pool_.loop().settle();
    hear(askers_.back());
    if (!askers_.back().greeted) std::abort();
  }

  void send(Asker& asker, const std::string& bytes) {
    if (!asker.lost)
      static_cast<void>(::send(asker.end, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
  }

  void ask() {
    Asker& its = asker();
    wire::Preamble preamble{.length = sizeof(wire::CheckpointQuestion)};
    wire::CheckpointQuestion question{
        .action = static_cast<wire::CheckpointAction>(input_.below(wire::kCheckpointActions + 1)),
        .timeout_ms = input_.below(3),
        .pid = input_.below(2) == 0 ? 1 : input_.below(4),
        .session = input_.below(4)};
    std::string bytes(reinterpret_cast<const char*>(&preamble), sizeof preamble);
    bytes.append(reinterpret_cast<const char*>(&question), sizeof question);
    if (static_cast<uint32_t>(question.action) == wire::kCheckpointActions)
      its.honest = false;
    else
      ++its.asked;
    send(its, bytes);
  }

  void write() {
    Asker& its = asker();
    its.honest = false;
    send(its, input_.text());
  }

  void leave() {
    Asker& its = asker();
    if (its.lost) return;
    ::shutdown(its.end, SHUT_RDWR);
    its.lost = true;
    its.honest = false;
  }

  void answer() {
    auto* const its = pool_.workers().at(input_.below(4));
    if (!its) return;
    pool_.workers().take(*its);
    const uint64_t question = input_.below(4) == 3 ? input_.below(8) : its->state_question;
    pool_.workers().send<ControlKind::state_changed>(
        *its, {.question = question, .result = static_cast<int32_t>(input_.below(2))});
  }

  // Reads the answers so far; aborts if one is invalid.
  void hear(Asker& its) {
    while (!its.lost) {
      char bytes[4096];
      const ssize_t got = ::recv(its.end, bytes, sizeof bytes, MSG_DONTWAIT);
      if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
      if (got <= 0)
        its.lost = true;
      else
        its.heard.append(bytes, static_cast<size_t>(got));
    }
    wire::Preamble preamble;
    while (its.heard.size() >= sizeof preamble) {
      std::memcpy(&preamble, its.heard.data(), sizeof preamble);
      if (preamble.magic != wire::kMagic) std::abort();
      if (its.heard.size() < sizeof preamble + preamble.length) break;
      take_answer(its, std::string_view(its.heard).substr(sizeof preamble, preamble.length));
      its.heard.erase(0, sizeof preamble + preamble.length);
    }
  }

  static void take_answer(Asker& its, std::string_view body) {
    if (body.empty()) {  // a keep-alive
      if (its.honest && its.answered >= its.asked) std::abort();
      return;
    }
    if (!its.greeted) {
      its.greeted = true;
      return;
    }
    wire::CheckpointAnswer answer;
    if (body.size() < sizeof answer) std::abort();
    std::memcpy(&answer, body.data(), sizeof answer);
    if (body.size() != sizeof answer + answer.sessions * sizeof(wire::ProcessSession)) std::abort();
    if (++its.answered > its.asked && its.honest) std::abort();
  }

  fuzz::Input input_;
  fuzz::FakePool pool_;
  Checkpoints checkpoints_{pool_.loop().context, pool_.pool().state_changes(),
                           [](Client, const Refusal&) { std::abort(); }};
  std::vector<Asker> askers_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const int before = fuzz::next_descriptor();
  {
    Attack attack(fuzz::Input(data, size));
    attack.run();
  }
  if (fuzz::next_descriptor() != before) std::abort();
  return 0;
}
