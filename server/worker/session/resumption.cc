#include "server/worker/session/resumption.h"

#include <unistd.h>

#include <utility>

#include "common/log/log.h"

namespace gpupool::worker {
namespace {

using std::chrono::milliseconds;

// How long to wait after the client's side has ended the connection. A client that still lives notices that
// at once and returns; one that was killed does not, and its memory should be free soon. poold ends the
// session earlier if somebody needs what it has (server/poold/workers/abandoned_sessions.h).
constexpr milliseconds kAfterEnd{5000};

constexpr milliseconds kUsualNotice{100};  // from the end of a connection until its reader notices

Error replaced() {
  return {ErrorCode::lost, "the client has opened another connection"};
}

bool was_closed(const Error& why) {
  return why.code == ErrorCode::closed || why.code == ErrorCode::reset;
}

void close_offer(std::optional<server::ControlMessage>& offer) {
  if (offer && offer->descriptor >= 0) ::close(offer->descriptor);
  offer.reset();
}

}  // namespace

Resumptions::Resumptions(Control& control) : control_(control) {
  control_.handle(server::ControlKind::resume, [this](server::ControlMessage message) {
    const std::lock_guard lock(mutex_);
    const auto found = by_link_.find(message.body<server::packet::Resume>().link);
    if (found != by_link_.end()) return found->second->take(std::move(message));
    std::optional<server::ControlMessage> unwanted = std::move(message);
    close_offer(unwanted);
  });
}

Resumptions::~Resumptions() {
  control_.handle(server::ControlKind::resume, nullptr);
}

void Resumptions::add(uint64_t link, Resumption& resumption) {
  const std::lock_guard lock(mutex_);
  by_link_[link] = &resumption;
}

void Resumptions::remove(uint64_t link) {
  const std::lock_guard lock(mutex_);
  by_link_.erase(link);
}

Resumption::Resumption(transport::ResumableConnection& connection, uint64_t link, Terms terms)
    : connection_(connection), link_(link), terms_(std::move(terms)) {
  terms_.offers->add(link_, *this);
  thread_ = std::thread([this] { run(); });
}

Resumption::~Resumption() {
  terms_.offers->remove(link_);
  connection_.close();
  {
    const std::lock_guard lock(mutex_);
    close_offer(offered_);
  }
  changed_.notify_all();
  thread_.join();
}

void Resumption::take(server::ControlMessage message) {
  {
    const std::lock_guard lock(mutex_);
    close_offer(offered_);
    offered_ = std::move(message);
  }
  // This side may not have noticed yet that the old connection is broken.
  connection_.break_carrier(replaced());
  changed_.notify_all();
}

void Resumption::run() {
  while (true) {
    const bool closed = connection_.wait_for_end();
    const auto start = Clock::now();
    // The executor notices the end when it has executed what it has received, which may take long.
    auto why = connection_.wait_for_break(start + kUsualNotice);
    const bool early = !why && closed && !leaving_ && !connection_.over();
    if (early) tell_broken({ErrorCode::closed, connection_.peer() + " closed the connection"});
    if (!why) why = connection_.wait_for_break();
    if (!why) return;
    if (leaving_) return connection_.give_up(*why);
    if (!early) tell_broken(*why);
    const uint64_t resent_before = connection_.resent();
    if (!wait_for_client(*why, start)) return connection_.give_up(*why);
    const uint64_t resent = connection_.resent() - resent_before;
    terms_.offers->resumed(link_, resent);
    log::info("session_resumed",
              {{"session", terms_.session_number},
               {"link", link_},
               {"resent_bytes", resent},
               {"transport", connection_.carrier()},
               {"milliseconds", std::chrono::duration_cast<milliseconds>(Clock::now() - start).count()}});
  }
}

void Resumption::tell_broken(const Error& why) {
  log::info("client_connection_broken",
            {{"session", terms_.session_number}, {"link", link_}, {"reason", why.message}});
  terms_.offers->broken(link_, was_closed(why));
  if (terms_.on_break) terms_.on_break();
}

bool Resumption::wait_for_client(const Error& why, Clock::time_point start) {
  const auto latest = start + terms_.timeout;
  auto deadline = was_closed(why) ? std::min(latest, start + kAfterEnd) : latest;
  while (true) {
    std::optional<server::ControlMessage> offer;
    {
      std::unique_lock lock(mutex_);
      changed_.wait_until(lock, deadline, [this] { return offered_.has_value() || connection_.over(); });
      offer = std::exchange(offered_, std::nullopt);
    }
    if (connection_.over()) {
      close_offer(offer);
      return false;
    }
    if (!offer) return false;
    const auto resumed = resume(*offer);
    if (resumed) {
      // take() cannot break a carrier before it is in use.
      const std::lock_guard lock(mutex_);
      if (offered_) connection_.break_carrier(replaced());
      return true;
    }
    log::info("session_not_resumed",
              {{"session", terms_.session_number}, {"link", link_}, {"reason", resumed.error().message}});
    if (was_closed(resumed.error())) {  // a program that was killed while it came back
      deadline = std::min(latest, Clock::now() + kAfterEnd);
      terms_.offers->broken(link_, true);
    }
  }
}

Result<void> Resumption::resume(const server::ControlMessage& message) {
  auto carrier = terms_.welcome(message, connection_.retire_carrier());
  if (!carrier) {
    // This side's RDMA device is lost, and with it the session's keys.
    const bool hopeless = carrier.error().code == ErrorCode::refused && connection_.session_resources();
    if (hopeless) connection_.give_up(carrier.error());
    return carrier.error();
  }
  const auto resumed =
      connection_.resume(std::move(*carrier), message.body<server::packet::Resume>().received);
  if (!resumed) connection_.give_up(resumed.error());  // it will not become possible
  return resumed;
}

}  // namespace gpupool::worker
