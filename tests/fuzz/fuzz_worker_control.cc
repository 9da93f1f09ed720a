// Fuzzes a WorkerPool with compromised workers and with clients that start and end sessions: any message on
// the control socket, truncated or with unexpected descriptors, arbitrary contents of session pages and logs,
// exits at any time. The input is a sequence of calls.
//
// poold must answer only workers with an open request (fake_workers.cc), must end workers that violate the
// protocol, and must not leak descriptors.
#include <signal.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>

#include "common/text/printable.h"
#include "protocol/peers/proof.h"
#include "tests/fuzz/fake_pool.h"
#include "tests/fuzz/input.h"

using namespace gpupool;
using namespace gpupool::server;

namespace {

constexpr ControlKind kKinds[] = {ControlKind::turn,
                                  ControlKind::memory_needed,
                                  ControlKind::moved_out,
                                  ControlKind::image_wanted,
                                  ControlKind::image_deposit,
                                  ControlKind::image_damaged,
                                  ControlKind::share_wanted,
                                  ControlKind::share_found,
                                  ControlKind::share_missing,
                                  ControlKind::state_changed,
                                  ControlKind::dump,
                                  ControlKind::peer_wanted,
                                  ControlKind::image_offered,
                                  ControlKind::ready,
                                  ControlKind::failed,
                                  ControlKind::migration_ended,
                                  ControlKind::reclaim,
                                  ControlKind::connection_broken,
                                  ControlKind::connection_resumed,
                                  ControlKind::client_leaves};
constexpr uint64_t kSizes[] = {0, 1, 100, 4096, 60'000, uint64_t{1} << 30, uint64_t{6} << 30, UINT64_MAX};
constexpr int kTimes[] = {0, 1, 5, 20, 600, 2'000, 11'000, 70'000};           // milliseconds
constexpr int kStatuses[] = {0, 1 << 8, 10 << 8, 13 << 8, SIGKILL, SIGSEGV};  // statuses of waitpid()
constexpr fuzz::FakePool::End kEnds[] = {fuzz::FakePool::End::by_themselves, fuzz::FakePool::End::killed,
                                         fuzz::FakePool::End::left_behind};
const char* const kTenants[] = {"a", "b", "nobody", "leased"};

class Attack {
 public:
  explicit Attack(fuzz::Input input) : input_(input), file_(::open("/dev/null", O_RDONLY | O_CLOEXEC)) {}
  ~Attack() { ::close(file_); }

  void run() {
    pool_.all_say_ready();
    pool_.begin_session("a", 1);
    pool_.begin_session("a", 2);
    for (int calls = 0; !input_.empty() && calls < 200; ++calls) {
      call();
      pool_.loop().settle();
    }
    for (size_t i = 0; i < pool_.workers().count(); ++i) pool_.workers().take(*pool_.workers().at(i));
    check_books();
    pool_.stop(kEnds[input_.below(std::size(kEnds))]);
    if (dumps_ != 0 || migrations_ != 0 || (open_ != 0 && !gave_up_)) std::abort();  // unanswered requests
  }

 private:
  fuzz::FakeWorker* worker() { return pool_.workers().at(input_.below(8)); }
  uint64_t size() { return kSizes[input_.below(std::size(kSizes))]; }
  const char* tenant() { return kTenants[input_.below(std::size(kTenants))]; }

  void call() {
    switch (input_.below(17)) {
      default: return send();
      case 16: return configure();
      case 5: return resume();
      case 6: return send_raw();
      case 7: return start_session();
      case 8:
        if (auto* const its = worker()) answer(*its);
        return;
      case 9:
        if (auto* const its = worker(); its && !its->ended())
          pool_.workers().end(*its, kStatuses[input_.below(std::size(kStatuses))]);
        return;
      case 10: return change_state();
      case 11: return ask();
      case 12: return attach();
      case 13: return write_page();
      case 14: return pool_.loop().pass(std::chrono::milliseconds(kTimes[input_.below(std::size(kTimes))]));
      case 15: return write_log();
    }
  }

  // Values for the structs of all kinds.
  struct Values {
    int32_t gpu = 0;
    uint64_t bytes = 0;
    uint32_t restores = 0, is_memory = 0;
    wire::ImageDigest name{};
    uint64_t request = 0;
    uint64_t share_session = 0, requester = 0;
    uint64_t question = 0;
    int32_t result = 0;
    wire::PeerTarget target{};
  };
  Values values() {
    Values out;
    out.gpu = static_cast<int32_t>(input_.below(4)) - 1;
    out.bytes = size();
    out.restores = input_.below(2);
    out.name.fill(static_cast<uint8_t>(input_.below(3)));
    out.request = input_.below(4);
    out.share_session = input_.below(6);
    out.requester = input_.below(6);
    out.is_memory = input_.below(2);
    out.question = input_.below(8);
    out.result = static_cast<int32_t>(input_.below(3));
    out.target.port = static_cast<uint16_t>(input_.below(2));
    return out;
  }

  void send() {
    auto* const its = worker();
    const ControlKind kind = kKinds[input_.below(std::size(kKinds))];
    const Values of = values();
    const uint32_t odd = input_.below(16);
    const uint32_t other = odd == 1 ? input_.get<uint32_t>() : 0;
    if (!its) return;
    const bool has_text = kind == ControlKind::dump || kind == ControlKind::migration_ended;
    const std::string text = odd == 2 || has_text ? input_.text() : "";
    // Sends the struct of `kind`; for odd == 1, under another kind.
    const auto as = [&](const auto& body) {
      using Body = std::remove_cvref_t<decltype(body)>;
      const auto bytes = std::as_bytes(std::span(&body, 1)).first(kControlBodyBytes<Body>);
      if (odd != 1 && !is_control_body<Body>(kind)) std::abort();  // would be a mistake of this switch
      pool_.workers().send(*its, odd == 1 ? ControlKind(other) : kind, bytes, text, odd == 3 ? file_ : -1);
    };
    switch (kind) {
      case ControlKind::memory_needed:
        return as(packet::MemoryNeeded{
            .question = of.request, .bytes = of.bytes, .gpu = of.gpu, .restores = of.restores});
      case ControlKind::moved_out: return as(packet::MovedOut{.bytes = of.bytes, .gpu = of.gpu});
      case ControlKind::image_wanted:
      case ControlKind::image_offered:
        return as(packet::ImageQuestion{.request = of.request, .bytes = of.bytes, .name = of.name});
      case ControlKind::image_deposit:
      case ControlKind::image_damaged: return as(packet::Image{.bytes = of.bytes, .name = of.name});
      case ControlKind::share_wanted:
        return as(packet::ShareWanted{
            .session = of.share_session, .requester = of.requester, .request = of.request});
      case ControlKind::share_found:
        return as(packet::ShareFound{.requester = of.requester,
                                     .request = of.request,
                                     .bytes = of.bytes,
                                     .gpu = of.gpu,
                                     .is_memory = of.is_memory});
      case ControlKind::share_missing:
        return as(packet::ShareMissing{.requester = of.requester, .request = of.request});
      case ControlKind::state_changed:
        return as(packet::StateChanged{.question = of.question, .result = of.result});
      case ControlKind::dump: return as(packet::DumpQuestion{.question = of.question});
      case ControlKind::migration_ended:
        return as(packet::MigrationEnded{.number = of.question, .migrated = of.restores});
      case ControlKind::reclaim:
        return as(packet::Reclaim{.question = of.question,
                                  .gpu = of.gpu,
                                  .reason = static_cast<packet::ReclaimReason>(of.request)});
      case ControlKind::connection_broken:
        return as(packet::ConnectionBroken{.link = of.requester, .closed = of.is_memory});
      case ControlKind::connection_resumed: return as(packet::ConnectionResumed{.link = of.requester});
      case ControlKind::peer_wanted:
        return as(packet::PeerWanted{.request = of.request, .target = of.target});
      default: return as(packet::NoBody{});
    }
  }

  void send_raw() {
    auto* const its = worker();
    const std::string bytes = input_.long_text();
    if (its) pool_.workers().send_raw(*its, bytes);
  }

  // Answers as an honest worker does, to get further.
  void answer(fuzz::FakeWorker& its) {
    fuzz::FakeWorkers& all = pool_.workers();
    all.take(its);
    switch (input_.below(7)) {
      case 0:
        all.fill_image(its, true);
        return all.send<ControlKind::image_deposit>(its, {.bytes = its.image_bytes, .name = its.image_name});
      case 1:
        all.fill_image(its, false);
        return all.send<ControlKind::image_deposit>(its, {.bytes = its.image_bytes, .name = its.image_name});
      case 2:
        return all.send<ControlKind::share_found>(its, {.requester = its.share_wanted.requester,
                                                        .request = its.share_wanted.request,
                                                        .is_memory = input_.below(2)});
      case 3:
        return all.send<ControlKind::state_changed>(
            its, {.question = its.state_question, .result = static_cast<int32_t>(input_.below(2))});
      case 4: return all.send<ControlKind::dump>(its, {.question = its.dump_question}, input_.text());
      case 5:
        return all.send<ControlKind::migration_ended>(
            its, {.number = its.migration, .migrated = input_.below(2)}, input_.text());
      default: return;
    }
  }

  void start_session() {
    const uint32_t how = input_.below(4);
    pool_.workers().starts = how != 1;
    const char* const name = tenant();
    Client client = pool_.new_client(name, input_.below(3));
    if (how == 2 || client.tenant == "leased") client.lease = "1f";
    pool_.pool().assign(std::move(client));
    if (how != 3) pool_.all_say_ready();
  }

  void change_state() {
    Client client;
    client.tenant = tenant();
    client.host = "host";
    client.program = input_.text();
    const wire::CheckpointQuestion question{
        .action = static_cast<wire::CheckpointAction>(input_.below(wire::kCheckpointActions)),
        .pid = input_.below(3),
        .session = input_.below(6)};
    if (pool_.pool().state_changes().sessions_of_process(client, question.pid).size() > 4) std::abort();
    if (question.action == wire::CheckpointAction::find) {
      const bool abandoned = input_.below(2) == 1;
      gave_up_ = gave_up_ || abandoned;
      return pool_.pool().state_changes().cancel(question_, abandoned);
    }
    ++open_;
    question_ = pool_.pool().state_changes().change(client, question, [this](int32_t) { --open_; });
  }

  void ask() {
    const uint64_t session = input_.below(6);
    switch (input_.below(5)) {
      case 0:
        ++dumps_;
        if (!pool_.pool().dumps().ask(session,
                                      [this](const SessionView&, const Result<std::string>&) { --dumps_; }))
          --dumps_;
        return;
      case 1: return static_cast<void>(pool_.pool().end_session(session, input_.text()));
      case 2: return pool_.pool().end_sessions(tenant(), "ended");
      case 3:
        ++migrations_;
        if (!pool_.pool().request_migration(
                session, input_.text(),
                [this](const Result<Migrations::Outcome>& outcome) { check(outcome); }))
          --migrations_;
        return;
      default: {
        wire::PeerHello hello = input_.get<wire::PeerHello>();
        if (pool_.pool().find_peer_copy(hello)) std::abort();  // a session's id cannot be guessed
        return;
      }
    }
  }

  void check(const Result<Migrations::Outcome>& outcome) {
    --migrations_;
    if (outcome &&
        (outcome->reason.size() > kMostMigrationText || printable(outcome->reason) != outcome->reason))
      std::abort();
  }

  void attach() {
    const auto* const its = worker();
    Client client = pool_.new_client("", 0);
    const uint32_t how = input_.below(4);
    if (its && how != 0) client.session_id = its->session_id;
    if (its && how != 1) client.bulk_token = its->bulk_token;
    if (its && how == 2) client.peer = PeerCopy{its->session, input_.get<uint8_t>(), {}};
    const uint64_t refused = pool_.refused();
    pool_.pool().attach(std::move(client));
    // Joining a session requires its secret.
    if (its && its->session != 0 && how < 2 && pool_.refused() == refused) std::abort();
  }

  // Resumes a session as its client would, or as somebody without the key or with what that client once sent.
  void resume() {
    auto* const its = worker();
    Client client = pool_.new_client(tenant(), 0);
    const uint32_t how = input_.below(8);
    Client::Resume shown{.proof = input_.below(2) == 0 ? "" : input_.text(),
                         .link = input_.below(wire::kMaxBulkConnections + 2),
                         .attempt = input_.below(4),
                         .received = input_.below(4)};
    if (how == 1) client.lease = "1f";
    if (its) pool_.workers().take(*its);
    const bool knows = its && its->session != 0 && how != 2;
    if (knows) {
      client.session_id = its->session_id;
      const auto proof =
          peers::prove_resume(its->resume_key, shown.link, shown.attempt + (how == 3), shown.received);
      shown.proof.assign(proof.begin(), proof.end());
    }
    client.resume = shown;
    const bool owns = knows && pool_.belongs(its->session, client);
    const uint64_t refused = pool_.refused();
    pool_.pool().resume(std::move(client));
    if (pool_.refused() != refused) return;
    if (!owns || how == 3 || shown.link > wire::kMaxBulkConnections) std::abort();
    // No attempt can be repeated.
    if (!resumed_.insert({its->session, shown.link, shown.attempt}).second) std::abort();
  }

  // Changes by an operator or the pool's scheduler.
  void configure() {
    switch (input_.below(5)) {
      case 0: return pool_.reconfigure(input_.below(8));
      case 1: pool_.refusing = input_.below(2) == 1; return;
      case 2: return pool_.change_lease(input_.below(2) == 1);
      case 3: {
        const std::string revoked = tenant();
        return pool_.pool().end_sessions(
            [&](const Client& client) {
              return client.tenant == revoked ? std::optional<std::string>("revoked") : std::nullopt;
            },
            log::Level::warning);
      }
      default:
        if (pool_.pool().state().serving > 4) std::abort();
    }
  }

  void write_page() {
    auto* const its = worker();
    const uint32_t gpu = input_.below(3);
    const uint64_t value = size();
    const uint32_t field = input_.below(10);
    if (!its) return;
    quota::SessionPage& page = **its->page;
    switch (field) {
      case 0: page.gpus[gpu].memory_used = value; return;
      case 1: page.gpus[gpu].memory_in_host = value; return;
      case 2: page.gpus[gpu].memory_movable = value; return;
      case 3: page.gpus[gpu].gpu_nanoseconds = value; return;
      case 4: page.idle_since = static_cast<int64_t>(value); return;
      case 5: page.stays_until = static_cast<int64_t>(value); return;
      case 6: page.turns[gpu] = static_cast<uint32_t>(value); return;
      case 7: page.bell = static_cast<uint32_t>(value); return;
      default: page.wants_turn[gpu] = field % 2; return;
    }
  }

  void write_log() {
    auto* const its = worker();
    const std::string text = input_.text();
    if (its && !its->ended())
      static_cast<void>(::send(its->output, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
  }

  // Checks poold's state as the admin service reports it.
  void check_books() {
    unsigned serving = 0;
    pool_.pool().for_each_session([&](const SessionView& view) {
      ++serving;
      if (view.number == 0) std::abort();
    });
    const auto state = pool_.pool().state();
    if (serving != state.serving || pool_.pool().images().bytes() > pool_.pool().images().capacity())
      std::abort();
  }

  fuzz::Input input_;
  const int file_;
  fuzz::FakePool pool_;
  std::set<std::tuple<uint64_t, uint32_t, uint64_t>> resumed_;  // session, connection and attempt
  uint64_t question_ = 0;
  int open_ = 0, dumps_ = 0, migrations_ = 0;  // unanswered requests
  bool gave_up_ = false;
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
