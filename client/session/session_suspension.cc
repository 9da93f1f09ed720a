// The part of Session that suspends it (docs/adr/0038-suspended-sessions.md): its server writes it to a file,
// and the client asks for it until it is resumed, there or at another server.
#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "client/process/log.h"
#include "client/session/migrator.h"
#include "client/session/session.h"

namespace gpupool::client {
namespace {

using std::chrono::milliseconds;
using transport::Clock;

constexpr milliseconds kFirstQuestionPause{50}, kLongestQuestionPause{1000};  // between attempts
constexpr milliseconds kUnmentionedTime{1000};
// A server keeps the question until something happens. If it answers sooner than this, the client asks less
// often.
constexpr milliseconds kServerWaits{500};
// How long a server that the session was sent to may be unreachable, or refuse it.
constexpr milliseconds kElsewhereTime{15'000};
// A file may be large, and its file system slow.
constexpr std::chrono::seconds kFileAdoptTime{3600};
constexpr int kForgetAttempts = 5;

// Tells the user that calls wait, unless they go on within kUnmentionedTime. Any thread.
class Notice {
 public:
  explicit Notice(const std::string& server) {
    std::thread([shared = shared_, server] {
      std::unique_lock lock(shared->mutex);
      if (shared->over.wait_for(lock, kUnmentionedTime, [&] { return shared->is_over; })) return;
      shared->told = true;
      log_warning("the session with server %s is suspended; CUDA calls wait until it is resumed",
                  server.c_str());
    }).detach();
  }
  // Returns whether the user was told.
  bool end() {
    const std::lock_guard lock(shared_->mutex);
    shared_->is_over = true;
    shared_->over.notify_all();
    return shared_->told;
  }

 private:
  struct Shared {
    std::mutex mutex;  // guards the rest
    std::condition_variable over;
    bool is_over = false, told = false;
  };
  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

// The client shows its token at the address that its server names, so that must be no less protected than the
// server's own. The socket of another server on this machine could be anybody's.
Result<void> check_destination(const std::string& home, const std::string& address) {
  if (address.starts_with("tls://")) return {};
  if (home.starts_with("tls://"))
    return Error{ErrorCode::refused, "an encrypted session goes on at tls:// addresses only"};
  if (!address.starts_with("tcp://"))
    return Error{ErrorCode::refused, "a session goes on at tls:// and tcp:// addresses only"};
  return {};
}

}  // namespace

// The session while it is with no worker.
struct Session::Absence {
  Migrator::Suspended suspended = {};
  Settings settings;
  const std::string home;   // address of the server that has suspended it
  std::string address;      // of the server that is asked
  milliseconds timeout{0};  // without an answer from any server
  Clock::time_point since = Clock::now(), heard = since, elsewhere = since;
};

Result<void> Session::suspend(uint64_t wish) {
  if (!connection_->started() || connection_->direct_memory())
    return Error{ErrorCode::refused,
                 "only a session that can be resumed, and not over rdma, can be suspended"};
  wire::PeerTarget file{};
  file.copy = wire::kAdoptSequence;
  if (auto begun = begin_migration(file); !begun) return begun;
  Absence absence{.settings = settings_, .home = server(), .address = server()};
  absence.settings.shared_memory &= connection_->shares_memory();
  if (auto left = leave_when_ready([&] { return stay_away(absence, wish); }); !left) return left;
  // The file is needed no more, neither where the session goes on nor where it was.
  for (const std::string& address : {absence.address, absence.home}) {
    const auto settings = settings_for(address, absence.settings);
    for (int i = 0; i < kForgetAttempts && settings; ++i) {
      const auto told = Migrator::forget(address, *settings, absence.suspended);
      if (told || told.error().code == ErrorCode::refused) break;
      std::this_thread::sleep_for(kLongestQuestionPause);
    }
    if (address == absence.home) break;
  }
  return {};
}

// Its server has all of the session in a file.
Result<void> Session::stay_away(Absence& absence, uint64_t wish) {
  {
    const std::lock_guard lock(server_mutex_);
    absence.suspended = {session_id_, resume_key_};
    absence.timeout = resume_timeout_;
  }
  reconnector_.expect_switch();
  links_.leave();
  say_farewell(wish);
  const auto resumed = await_resumption(absence);
  if (resumed) return {};
  reconnector_.give_up(resumed.error());
  fail(resumed.error());
  return resumed;
}

Result<void> Session::await_resumption(Absence& absence) {
  Notice notice(absence.home);
  const auto result = ask_until_resumed(absence);
  const auto waited = std::chrono::duration_cast<milliseconds>(Clock::now() - absence.since);
  if (notice.end() && result)
    log_warning("the session with server %s goes on at %s after %lld ms", absence.home.c_str(),
                absence.address.c_str(), static_cast<long long>(waited.count()));
  return result;
}

Result<void> Session::ask_until_resumed(Absence& absence) {
  for (auto pause = kFirstQuestionPause; !failed();) {
    const auto asked = Clock::now();
    const auto back = try_to_come_back(absence);
    const auto now = Clock::now();
    if (back && *back) return {};
    if (back) absence.heard = now;
    if (!back && absence.address != absence.home && now - absence.elsewhere >= kElsewhereTime) {
      log_warning("the session cannot go on at %s: %s", absence.address.c_str(),
                  back.error().message.c_str());
      absence.address = absence.home;
      absence.suspended.failure = back.error().message;
    } else if (!back && absence.address == absence.home &&
               (back.error().code == ErrorCode::refused || now - absence.heard >= absence.timeout)) {
      return back.error();
    }
    if (now - asked >= kServerWaits) pause = kFirstQuestionPause;
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongestQuestionPause);
  }
  return Error{ErrorCode::lost, "the session has failed while it was suspended"};
}

// Returns false if the session is still suspended. ErrorCode::refused: it is over, as far as this server
// knows.
Result<bool> Session::try_to_come_back(Absence& absence) {
  const auto settings = settings_for(absence.address, absence.settings);
  if (!settings) return Error{ErrorCode::lost, settings.error().message};
  auto returned = Migrator::come_back(absence.address, *settings, absence.suspended);
  if (!returned) return returned.error();
  Migrator& target = **returned;
  if (target.reply().status != hello::Status::ok) {
    const std::string& moved_to = target.reply().moved_to;
    if (moved_to.empty()) return false;
    if (const auto allowed = check_destination(absence.home, moved_to); !allowed) {
      log_warning("the session cannot go on at %s: %s", moved_to.c_str(), allowed.error().message.c_str());
      absence.suspended.failure = allowed.error().message;
      return false;
    }
    log_debug("the session is to go on at %s", moved_to.c_str());
    absence.address = moved_to;
    absence.elsewhere = Clock::now();
    return false;
  }
  if (auto adopted = adopt_again(target); !adopted) {
    absence.heard = Clock::now();
    log_warning("the session stays suspended: %s", adopted.error().message.c_str());
    absence.suspended.failure = adopted.error().message;  // for the operator
    return Error{ErrorCode::lost, adopted.error().message};
  }
  return true;
}

Result<void> Session::adopt_again(Migrator& target) {
  if (auto same = target.compare(offered_, driver_version_); !same) return same;
  auto links =
      links_.prepare(bulk_parameters(target.reply(), target.server(), target.connection(), false),
                     resume_terms(target.reply(), target.server(), target.options(), target.settings()));
  if (!links) return Error{ErrorCode::unavailable, target.server().text() + " accepts no bulk connections"};
  auto adopted = target.ask_to_adopt();
  if (adopted) adopted = check_adopted(target, kFileAdoptTime);
  if (adopted)
    continue_on(target, links);
  else
    links_.stay(links);
  return adopted;
}

}  // namespace gpupool::client
