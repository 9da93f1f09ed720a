#include "scheduler/service/engine.h"

#include <sys/random.h>

#include <exception>
#include <iterator>

#include "common/log/log.h"
#include "common/text/printable.h"
#include "protocol/lease/token.h"
#include "scheduler/core/library_placer.h"
#include "scheduler/core/records.h"
#include "scheduler/service/streams.h"

namespace gpupool::scheduler {
namespace {

using namespace std::chrono_literals;

constexpr auto kTickEvery = 200ms;
constexpr auto kCampaignTimeout = 1s;
constexpr auto kPauseAfterFailure = 1s;
constexpr std::chrono::milliseconds kFirstMessageTimeout{10'000};
constexpr Time kSmallestStep = 1000;  // of the wall clock that matters
constexpr const char* kNoMore = "this scheduler is no longer the leader";

Time wall_clock() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

LeaseId random_id() {
  LeaseId id(lease::kIdBytes, '\0');
  // getrandom() of at most 256 bytes does not fail.
  if (::getrandom(id.data(), id.size(), 0) != static_cast<ssize_t>(id.size())) std::terminate();
  return id;
}

// Reads what the core needs: all but the rows of usage, of which there may be many.
Result<std::vector<Entry>> read_state(Store& store) {
  std::vector<Entry> all;
  for (const char* const prefix : kStatePrefixes) {
    auto some = store.all(prefix);
    if (!some) return some;
    all.insert(all.end(), std::make_move_iterator(some->begin()), std::make_move_iterator(some->end()));
  }
  return all;
}

grpc::Status status_of(const Refusal& refusal) {
  switch (refusal.kind) {
    case Refusal::Kind::invalid: return {grpc::StatusCode::INVALID_ARGUMENT, refusal.reason};
    case Refusal::Kind::exhausted: return {grpc::StatusCode::RESOURCE_EXHAUSTED, refusal.reason};
    case Refusal::Kind::denied: return {grpc::StatusCode::PERMISSION_DENIED, refusal.reason};
    case Refusal::Kind::busy: break;
  }
  return {grpc::StatusCode::ABORTED, refusal.reason};
}

}  // namespace

Engine::Engine(asio::io_context& context, std::unique_ptr<Store> store, lease::SigningKey key,
               Callers callers, std::string audit_file, std::chrono::milliseconds return_time)
    : context_(context),
      ticks_(context),
      store_(std::move(store)),
      key_(std::move(key)),
      credentials_(key_),
      callers_(std::move(callers)),
      audit_(std::move(audit_file)),
      auth_failures_(context, audit_),
      return_time_(return_time),
      steady_start_(std::chrono::steady_clock::now()),
      wall_start_(wall_clock()) {}

Engine::~Engine() {
  storing_.join();
}

Time Engine::now() const {
  return wall_start_ + std::chrono::duration_cast<std::chrono::milliseconds>(
                           std::chrono::steady_clock::now() - steady_start_)
                           .count();
}

int64_t Engine::wall_offset() const {
  return wall_clock() - now();
}

void Engine::start(const std::string& address) {
  address_ = address;
  campaign();
  tick();
}

void Engine::campaign() {
  storing_now_ = true;
  asio::post(storing_, [this] {
    Result<uint64_t> term = store_->campaign(address_, kCampaignTimeout);
    Result<std::vector<Entry>> entries =
        term ? read_state(*store_) : Result<std::vector<Entry>>(std::vector<Entry>());
    post([this, term = std::move(term), entries = std::move(entries)]() mutable {
      lead(std::move(term), std::move(entries));
    });
  });
}

void Engine::lead(Result<uint64_t> term, Result<std::vector<Entry>> entries) {
  storing_now_ = false;
  if (stopping_) return finish_stopping();
  if (!term || !entries) {
    const Error& why = term ? entries.error() : term.error();
    if (term || why.code != ErrorCode::refused) return step_down(why.message);
    logged_failure_ = false;
    return campaign();
  }
  auto core = std::make_unique<Core>(
      random_id, [](Nodes&) { return std::make_unique<LibraryPlacer>(); }, now());
  core->sign_with(key_.public_key().id());
  core->set_calendar(calendar_offset_ = wall_offset());
  if (const auto restored = core->restore(*entries, now()); !restored)
    return step_down(restored.error().message);
  core->configure(callers_.tenants(), callers_.prices(), now());
  core_ = std::move(core);
  term_ = *term;
  logged_failure_ = false;
  may_grant_ = term_ > 1 ? now() + return_time_.count() : 0;
  log::info("leads", {{"term", term_},
                      {"store", store_->describe()},
                      {"leases", core_->view_pool().leases()},
                      {"nodes", core_->view_pool().nodes()}});
  flush();
}

// Drops the core: effects that were not stored have not been published either.
void Engine::step_down(const std::string& why) {
  if (!std::exchange(logged_failure_, true) || core_) log::error("does_not_lead", {{"reason", why}});
  ++store_failures_;
  core_.reset();
  end_streams(kNoMore);
  for (auto* const list : {&callbacks_, &running_callbacks_}) {
    for (const auto& on_stored : std::exchange(*list, {})) on_stored(false);
  }
  const auto pause = std::make_shared<asio::steady_timer>(context_, kPauseAfterFailure);
  storing_now_ = true;
  asio::post(storing_, [this, pause] {
    store_->resign();
    post([this, pause] {
      storing_now_ = false;
      if (stopping_) return finish_stopping();
      pause->async_wait([this, pause](const asio::error_code& status) {
        if (!status && !stopping_) campaign();
      });
    });
  });
}

void Engine::end_streams(const std::string& why) {
  const grpc::Status status(grpc::StatusCode::UNAVAILABLE, why);
  for (const auto& [stream, holder] : lease_streams_) holder->end(status);
  for (const auto& [stream, node] : nodes_) node->end(status);
}

void Engine::stop(std::function<void()> done) {
  stopping_ = true;
  stopped_ = std::move(done);
  ticks_.cancel();
  end_streams("this scheduler is shutting down");
  if (!storing_now_) finish_stopping();
}

void Engine::finish_stopping() {
  auth_failures_.finish();
  core_.reset();
  for (auto* const list : {&callbacks_, &running_callbacks_}) {
    for (const auto& on_stored : std::exchange(*list, {})) on_stored(false);
  }
  asio::post(storing_, [this] {
    store_->resign();
    post(std::exchange(stopped_, {}));
  });
}

void Engine::configure(Callers callers) {
  callers_ = std::move(callers);
  if (!core_) return;
  core_->configure(callers_.tenants(), callers_.prices(), now());
  core_->end_removed_tenants(now());
  end_revoked();
  flush();
}

// Revokes the streams whose token is no longer valid. Clients with a lease or a queued request are informed
// after the revocation has been stored; others at once.
void Engine::end_revoked() {
  for (const auto& [stream, holder] : lease_streams_) {
    const auto why = holder->revoked();
    if (!why) continue;
    core_->revoke(stream, "its token was removed from the scheduler's configuration", now());
    if (holder->tenant().empty()) holder->refuse(*why);
  }
  for (const auto& [stream, node] : nodes_) {
    if (const auto why = node->revoked()) node->refuse(*why);
  }
}

void Engine::tick() {
  ticks_.expires_after(kTickEvery);
  ticks_.async_wait([this](const asio::error_code& status) {
    if (status) return;
    end_idle_streams();
    if (core_ && !storing_now_ && !store_->leads()) step_down(kNoMore);
    if (core_) {
      follow_wall_clock();
      core_->tick(now());
      flush();
    }
    tick();
  });
}

void Engine::follow_wall_clock() {
  const Time step = wall_offset() - calendar_offset_;
  if (step >= -kSmallestStep && step <= kSmallestStep) return;
  core_->clock_stepped(step, now());
  calendar_offset_ += step;
}

// Ends streams that have sent no message within kFirstMessageTimeout.
void Engine::end_idle_streams() {
  const grpc::Status status(grpc::StatusCode::DEADLINE_EXCEEDED, "no message received within 10 s");
  const auto end = [&](auto& streams, Stream stream) {
    const auto found = streams.find(stream);
    if (found != streams.end() && !found->second->has_received()) found->second->end(status);
  };
  for (; !awaiting_first_message_.empty() &&
         awaiting_first_message_.front().first + kFirstMessageTimeout.count() <= now();
       awaiting_first_message_.pop_front()) {
    end(lease_streams_, awaiting_first_message_.front().second);
    end(nodes_, awaiting_first_message_.front().second);
  }
}

void Engine::flush(std::function<void(bool)> on_stored) {
  if (on_stored) callbacks_.push_back(std::move(on_stored));
  if (std::exchange(work_posted_, true)) return;
  post([this] { work(); });  // after the events that are already queued
}

void Engine::work() {
  work_posted_ = false;
  if (!core_) {
    for (const auto& on_stored : std::exchange(callbacks_, {})) on_stored(false);
    return;
  }
  if (storing_now_ || stopping_) return;  // commit() calls work() again
  if (now() >= may_grant_) core_->schedule(now());
  Effects effects = core_->take(now());
  running_callbacks_ = std::exchange(callbacks_, {});
  // Effects without writes may be published only while no other scheduler leads.
  if (effects.writes.empty() && !store_->leads()) return step_down(kNoMore);
  if (effects.writes.empty()) return publish(std::move(effects));
  commit(std::move(effects));
}

void Engine::read(const std::string& prefix, std::function<void(Result<std::vector<Entry>>)> read) {
  asio::post(storing_, [this, prefix, read = std::move(read)]() mutable {
    Result<std::vector<Entry>> entries = store_->all(prefix);
    post([read = std::move(read), entries = std::move(entries)]() mutable { read(std::move(entries)); });
  });
}

void Engine::commit(Effects effects) {
  storing_now_ = true;
  asio::post(storing_, [this, effects = std::move(effects), term = term_]() mutable {
    const Result<void> written = store_->write(effects.writes, term);
    post([this, written, effects = std::move(effects)]() mutable {
      storing_now_ = false;
      ++commits_;
      if (!written) {
        if (stopping_) return finish_stopping();
        return step_down(written.error().message);
      }
      publish(std::move(effects));
      if (stopping_) return finish_stopping();
      work();
    });
  });
}

void Engine::publish(Effects effects) {
  const int64_t offset = wall_offset();
  for (const Note& note : effects.notes) {
    std::vector<log::Field> fields;
    for (const auto& [key, value] : note.fields) fields.emplace_back(key, value);
    log::write(note.level == Note::Level::info ? log::Level::info : log::Level::warning, note.event, fields);
    audit_.append(note.event, fields);
    if (observer_) observer_(note, now() + offset);
  }
  for (const ClientMessage& one : effects.clients) publish(one, offset);
  for (NodeMessage& one : effects.nodes) publish(std::move(one), offset);
  for (const auto& on_stored : std::exchange(running_callbacks_, {})) on_stored(true);
}

// Signs the token of a server of a grant.
Result<pool::Server> Engine::signed_server(const GrantedServer& from, int64_t offset) const {
  lease::Lease lease = from.lease;
  lease.set_issued_ms(lease.issued_ms() + offset);
  lease.set_expires_ms(lease.expires_ms() + offset);
  auto token = lease::make_token(lease, key_);
  if (!token) {  // unexpected: the core only grants leases that fit into a token
    log::error("no_token", {{"lease", lease::hexadecimal(lease.id())}, {"reason", token.error().message}});
    return token.error();
  }
  pool::Server server;
  server.set_address(from.address);
  server.set_token(std::move(*token));
  server.set_node(lease.node());
  *server.mutable_shares() = lease.shares();
  return server;
}

Result<void> Engine::fill_granted(const Grant& grant, int64_t offset, pool::Granted& granted) const {
  granted.set_lease(grant.lease);
  granted.set_secret(credentials_.lease_secret(grant.lease));
  granted.set_expires_ms(grant.expires + offset);
  granted.set_hold_ms(grant.hold_ms);
  for (const GrantedServer& from : grant.servers) {
    auto server = signed_server(from, offset);
    if (!server) return server.error();
    *granted.add_servers() = std::move(*server);
  }
  for (const GrantedMove& from : grant.moves) {
    auto to = signed_server(from.to, offset);
    if (!to) return to.error();
    pool::Move& move = *granted.add_moves();
    move.set_server(from.server);
    *move.mutable_to() = std::move(*to);
  }
  return {};
}

void Engine::publish(const ClientMessage& one, int64_t offset) {
  const auto found = lease_streams_.find(one.stream);
  if (found == lease_streams_.end()) return;  // the stream has ended; forget() has informed the core
  LeaseStream& stream = *found->second;
  pool::AcquireEvent event;
  if (const auto* const place = std::get_if<QueuePlace>(&one.message)) {
    pool::Queued& queued = *event.mutable_queued();
    queued.set_place(place->place);
    queued.set_waiting(place->waiting);
    queued.set_why(printable(place->why));
    queued.set_ticket(credentials_.ticket(stream.tenant(), stream.request(), place->arrived));
  } else if (const auto* const grant = std::get_if<Grant>(&one.message)) {
    if (const auto filled = fill_granted(*grant, offset, *event.mutable_granted()); !filled)
      return stream.end({grpc::StatusCode::INTERNAL, filled.error().message});
  } else if (const auto* const ended = std::get_if<pool::Ended>(&one.message)) {
    *event.mutable_ended() = *ended;
    if (ended->at_ms() != 0) event.mutable_ended()->set_at_ms(ended->at_ms() + offset);
  } else {
    return stream.end(status_of(std::get<Refusal>(one.message)));
  }
  stream.send(std::move(event));
  if (one.last) stream.end(grpc::Status::OK);
}

void Engine::publish(NodeMessage one, int64_t offset) {
  const auto found = nodes_.find(one.stream);
  if (found == nodes_.end()) return;
  if (one.refusal) return found->second->end(status_of(*one.refusal));
  one.orders.set_now_ms(one.orders.now_ms() + offset);
  found->second->send(std::move(one.orders));
}

void Engine::audit(const char* event, std::initializer_list<log::Field> fields) {
  log::write(log::Level::info, event, fields);
  audit_.append(event, fields);
}

Stream Engine::add(LeaseStream& stream) {
  lease_streams_[++streams_] = &stream;
  awaiting_first_message_.emplace_back(now(), streams_);
  return streams_;
}
Stream Engine::add(NodeStream& stream) {
  nodes_[++streams_] = &stream;
  awaiting_first_message_.emplace_back(now(), streams_);
  return streams_;
}

void Engine::forget(Stream stream) {
  if (lease_streams_.erase(stream) > 0 && core_) core_->client_disconnected(stream, now());
  if (nodes_.erase(stream) > 0 && core_) core_->node_disconnected(stream, now());
  if (core_) flush();
}

}  // namespace gpupool::scheduler
