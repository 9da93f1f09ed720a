#include "client/session/reconnector.h"

#include <pthread.h>

#include <algorithm>
#include <string_view>
#include <thread>
#include <utility>

#include "client/process/log.h"
#include "client/timeline/timeline.h"
#include "protocol/control/hello_exchange.h"
#include "protocol/peers/proof.h"

namespace gpupool::client {
namespace {

using std::chrono::milliseconds;
using transport::Clock;

constexpr milliseconds kNoPause{0}, kFirstPause{10}, kLongestPause{500};  // between attempts
constexpr milliseconds kSilentTime{1000};  // shorter breaks are not logged as warnings
constexpr milliseconds kOthersRead{1000};
// A server that has ended the connection and whose host then refuses connections for so long has ended
// itself: had a proxy ended the connection, the server would have given up the session by now.
constexpr milliseconds kGoneTime{10'000};

long long milliseconds_since(Clock::time_point start) {
  return std::chrono::duration_cast<milliseconds>(Clock::now() - start).count();
}

Error moved() {
  return {ErrorCode::closed, "the session has moved to another server"};
}

}  // namespace

void Reconnector::start(Terms terms) {
  terms_ = std::move(terms);
  connection_.start();
  std::thread([this] { run(); }).detach();
}

void Reconnector::run() {
  ::pthread_setname_np(::pthread_self(), "gpupool-resume");
  while (true) {
    (void)connection_.wait_for_end();
    // After the end no more bytes come. The thread that reads the last ones, among them perhaps the server's
    // reason, breaks the carrier.
    if (read_rest_) read_rest_(true);
    auto why = connection_.wait_for_break(Clock::now() + kOthersRead);
    if (read_rest_) read_rest_(false);
    if (!why) {
      connection_.break_carrier({ErrorCode::closed, terms_.name + " closed the connection"});
      why = connection_.wait_for_break();
    }
    if (!why) break;
    reconnect(*why);
  }
  const std::lock_guard lock(mutex_);
  changed_.notify_all();  // switch_to() returns when the connection is over
}

void Reconnector::expect_switch() {
  const std::lock_guard lock(mutex_);
  switching_ = true;
  changed_.notify_all();
}

void Reconnector::switch_to(Terms terms, std::unique_ptr<transport::ResumableConnection> next) {
  std::unique_lock lock(mutex_);
  switching_ = false;
  next_terms_ = std::move(terms);
  next_ = std::move(next);
  changed_.notify_all();
  // With the lock, so that it is not the next carrier that breaks.
  connection_.break_carrier(moved());
  changed_.wait(lock, [this] { return !next_ || connection_.over(); });
  next_.reset();  // the session is over: the target must not keep what it has adopted
}

void Reconnector::give_up(const Error& why) {
  const std::lock_guard lock(mutex_);
  switching_ = false;
  connection_.give_up(why);
  changed_.notify_all();
}

bool Reconnector::switched(milliseconds pause) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, pause, [this] { return switching_ || next_; });
  changed_.wait(lock, [this] { return !switching_; });
  if (connection_.over()) return true;
  if (!next_) return false;
  terms_ = std::move(next_terms_);
  attempts_ = 0;
  (void)connection_.retire_carrier();
  connection_.continue_as(*next_);
  next_.reset();
  changed_.notify_all();
  return true;
}

void Reconnector::reconnect(const Error& why) {
  if (switched(kNoPause)) return;
  const auto start = Clock::now();
  const int64_t broken_at = timeline::now();
  const auto tell_timeline = [&] {
    timeline::note_session(terms_.server_index, "connection broken", broken_at, why.message);
  };
  log_debug("the connection to server %s broke: %s", terms_.name.c_str(), why.message.c_str());
  bool told = false;
  // Connections have been refused since the server ended the broken one.
  bool refused = why.code == ErrorCode::closed || why.code == ErrorCode::reset;
  for (milliseconds pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    const auto resumed = try_once();
    if (resumed) {
      leave_if_switched();
      tell_timeline();
      if (told)
        log_warning("connected to server %s again after %lld ms", terms_.name.c_str(),
                    milliseconds_since(start));
      else
        log_debug("connected to server %s again after %lld ms", terms_.name.c_str(),
                  milliseconds_since(start));
      return;
    }
    if (switched(kNoPause)) return;  // a session that moves does not need its former server
    const auto passed = Clock::now() - start;
    refused = resumed.error().code == ErrorCode::reset && refused;
    const bool gone = refused && passed >= kGoneTime;
    const bool rejected =
        resumed.error().code == ErrorCode::refused || resumed.error().code == ErrorCode::suspended;
    if (rejected || gone || passed >= terms_.timeout) {
      tell_timeline();
      return connection_.give_up({why.code, why.message + "; " + resumed.error().message});
    }
    if (!told && passed >= kSilentTime) {
      told = true;
      log_warning("lost the connection to server %s (%s); CUDA calls wait for up to %lld s until it is back",
                  terms_.name.c_str(), why.message.c_str(),
                  static_cast<long long>(terms_.timeout.count() / 1000));
    }
    if (switched(pause)) return;
  }
}

// switch_to() could not break the new carrier if it was called before that was in use.
void Reconnector::leave_if_switched() {
  const std::lock_guard lock(mutex_);
  if (next_) connection_.break_carrier(moved());
}

Result<void> Reconnector::try_once() {
  auto carrier = transport::connect(terms_.server, terms_.options);
  if (!carrier) return carrier.error();
  // As late as possible: until here the broken carrier's data may still be read.
  const uint64_t received = connection_.retire_carrier();
  hello::Hello hello = terms_.hello;
  if (terms_.token) hello.token = terms_.token();
  hello.resume_attempt = ++attempts_;
  hello.resume_received = received;
  const auto proof = peers::prove_resume(terms_.resume_key, hello.bulk_link, hello.resume_attempt, received);
  hello.resume_proof.assign(proof.begin(), proof.end());
  const auto deadline = Clock::now() + terms_.options.connect_timeout;
  const auto reply = hello::exchange(**carrier, hello, deadline);
  if (!reply) return reply.error();
  if (auto upgraded = (*carrier)->upgrade(transport::Side::client, deadline); !upgraded) return upgraded;
  // The thread that reads may have become one that waits for room, which there is only when all is sent
  // again. Somebody must read meanwhile: the server may have as much to send, and the connection may end.
  if (read_rest_) read_rest_(true);
  const auto resumed = connection_.resume(std::move(*carrier), reply->resume_received);
  if (read_rest_) read_rest_(false);
  // Not with these positions, however often it is tried.
  if (!resumed) return Error{ErrorCode::refused, resumed.error().message};
  return {};
}

}  // namespace gpupool::client
