#include "client/lease_client/lease_client.h"

#include <sys/random.h>

#include <algorithm>
#include <random>
#include <thread>

#include "common/text/names.h"
#include "common/text/printable.h"
#include "protocol/scheduler/channel.h"

namespace gpupool::lease_client {
namespace {

using namespace std::chrono_literals;
using std::chrono::milliseconds;

// A new leader is elected within 3 to 4 s; clients retry often during that time.
constexpr milliseconds kFirstPause = 200ms, kLongestPause = 5000ms, kLongestFrequentPause = 1000ms;
// Period after losing the scheduler in which retries are frequent.
constexpr milliseconds kFrequentRetries = 20'000ms;
constexpr milliseconds kReturnTime = 8000ms;       // time to return a lease, possibly to the next leader
constexpr milliseconds kMessageInterval = 1000ms;  // minimum time between two messages about the queue

// True if neither a retry nor another scheduler will help.
bool is_final(grpc::StatusCode code) {
  switch (code) {
    case grpc::StatusCode::INVALID_ARGUMENT:
    case grpc::StatusCode::NOT_FOUND:
    case grpc::StatusCode::PERMISSION_DENIED:
    case grpc::StatusCode::UNAUTHENTICATED:
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
    case grpc::StatusCode::FAILED_PRECONDITION:
    case grpc::StatusCode::UNIMPLEMENTED: return true;
    default: return false;
  }
}

// Makes the scheduler's texts safe for the user's terminal.
void make_texts_printable(pool::AcquireEvent& event) {
  if (event.has_queued()) event.mutable_queued()->set_why(printable_message(event.queued().why()));
  if (event.has_ended()) event.mutable_ended()->set_reason(printable_message(event.ended().reason()));
  if (!event.has_granted()) return;
  const auto make_printable = [](pool::Server& server) {
    server.set_node(printable(cut_name(server.node())));
    server.set_address(printable(server.address()));
  };
  for (pool::Server& server : *event.mutable_granted()->mutable_servers()) make_printable(server);
  for (pool::Move& move : *event.mutable_granted()->mutable_moves()) make_printable(*move.mutable_to());
}

milliseconds with_jitter(milliseconds time) {
  static thread_local std::mt19937 random{std::random_device{}()};
  return time / 2 + milliseconds(std::uniform_int_distribution<int64_t>(0, time.count() / 2)(random));
}

}  // namespace

LeaseClient::LeaseClient(Settings settings, Granted granted, Notify notify)
    : settings_(std::move(settings)), granted_(std::move(granted)), notify_(std::move(notify)) {
  if (!settings_.address.request.id().empty()) return;
  std::string id(16, '\0');
  if (::getrandom(id.data(), id.size(), 0) == static_cast<ssize_t>(id.size()))
    settings_.address.request.set_id(id);
}

Result<void> LeaseClient::run() {
  if (const auto checked = pool::check_files(settings_.tls); !checked) return checked;
  const auto start = Clock::now();
  auto last_reply = start;
  milliseconds between = kFirstPause;
  std::optional<Clock::time_point> return_deadline;
  for (bool followed = false;;) {
    const pool::Scheduler scheduler =
        settings_.address.schedulers[next_ % settings_.address.schedulers.size()];
    std::optional<Error> over;
    got_reply_ = redirected_ = false;
    const grpc::Status status = run_stream(scheduler, over);
    if (got_reply_) last_reply = Clock::now();
    if (over) return *over;
    bool stopping = false;
    {
      const std::lock_guard lock(mutex_);
      stopping = stopping_;
    }
    // If the stream broke just now, the lease is returned on a new stream; if that fails, the lease expires.
    if (stopping && !return_deadline) return_deadline = Clock::now() + kReturnTime;
    if (stopping && (lease_.lease().empty() || status.ok() || Clock::now() > *return_deadline)) return {};
    if (status.ok() && settings_.address.request.check_only()) return {};
    if (is_final(status.error_code()))
      return Error{ErrorCode::refused, pool::failure_text(scheduler, status)};
    if (!ever_got_reply_ && Clock::now() - start > settings_.patience) {
      return Error{ErrorCode::unavailable,
                   "cannot reach any scheduler: " + pool::failure_text(scheduler, status)};
    }
    if (got_reply_) between = kFirstPause;
    if (!redirected_ && (!status.ok() || !got_reply_)) ++next_;
    // Follow a redirection at once, but not twice in a row, to avoid a loop.
    followed = redirected_ && !followed;
    if (followed) continue;
    if (std::exchange(last_message_, "cut") != "cut") {
      notify_((got_reply_
                   ? "lost the connection to scheduler " + scheduler.text() + ": " + status.error_message()
                   : pool::failure_text(scheduler, status)) +
              (lease_.lease().empty() ? "; retrying" : "; running programs are unaffected; retrying"));
    }
    if (stopping)
      std::this_thread::sleep_for(kFirstPause);
    else
      pause(with_jitter(between));
    between = std::min(2 * between,
                       Clock::now() - last_reply < kFrequentRetries ? kLongestFrequentPause : kLongestPause);
  }
}

void LeaseClient::stop() {
  const std::lock_guard lock(mutex_);
  if (std::exchange(stopping_, true)) return;
  stopped_.notify_all();
  if (!stream_) return;
  pool::AcquireCall call;
  call.mutable_release();
  stream_->Write(call);  // run() sees the end of the stream
}

void LeaseClient::pause(milliseconds time) {
  std::unique_lock lock(mutex_);
  stopped_.wait_for(lock, time, [&] { return stopping_; });
}

// Runs one stream from beginning to end.
grpc::Status LeaseClient::run_stream(const pool::Scheduler& scheduler, std::optional<Error>& over) {
  const auto stub = pool::Leases::NewStub(pool::open_channel(settings_.address, scheduler, settings_.tls));
  grpc::ClientContext context;
  if (std::string renewed = settings_.renewed_token ? settings_.renewed_token() : ""; !renewed.empty())
    settings_.token = std::move(renewed);
  if (!settings_.token.empty()) context.AddMetadata("authorization", "Bearer " + settings_.token);
  const auto stream = stub->Acquire(&context);
  pool::AcquireCall call;
  if (lease_.lease().empty())
    *call.mutable_request() = settings_.address.request;
  else
    *call.mutable_resume() = lease_;
  {
    const std::lock_guard lock(mutex_);
    if (stopping_ && lease_.lease().empty()) context.TryCancel();
    if (stream->Write(call)) {
      stream_ = stream.get();
      if (stopping_) {
        call.mutable_release();
        stream->Write(call);
      }
    }
  }
  pool::AcquireEvent event;
  while (!over && stream->Read(&event)) {
    got_reply_ = ever_got_reply_ = true;
    make_texts_printable(event);
    over = take(event);
  }
  {
    const std::lock_guard lock(mutex_);
    stream_ = nullptr;
  }
  if (over) context.TryCancel();
  const grpc::Status status = pool::printable_status(stream->Finish());
  if (const auto leader = pool::leader_of(context, settings_.address.schedulers); !status.ok() && leader) {
    redirected_ = true;
    next_ = *leader;
  }
  return status;
}

std::optional<Error> LeaseClient::take(const pool::AcquireEvent& event) {
  if (settings_.address.request.check_only()) {
    if (!event.has_ended()) stop();  // an older scheduler, which treats the request as any other
  } else if (event.has_queued()) {
    settings_.address.request.set_ticket(event.queued().ticket());
    report_position(event.queued());
  } else if (event.has_granted()) {
    if (last_message_ == "cut") notify_("reconnected to the scheduler");
    last_message_ = "granted";
    if (!follows()) {
      lease_.set_lease(event.granted().lease());
      lease_.set_secret(event.granted().secret());
    }
    if (const auto taken = granted_(event.granted()); !taken) return taken.error();
  } else if (event.has_ended()) {
    const auto& ended = event.ended();
    const std::string reason = ended.reason().empty() ? pool::Ended::Why_Name(ended.why()) : ended.reason();
    if (ended.at_ms() == 0 && (follows() || ended.why() != pool::Ended::RELEASED))
      return Error{ErrorCode::refused, "the lease has ended: " + reason};
    if (ended.at_ms() != 0) {
      const auto now =
          std::chrono::duration_cast<milliseconds>(std::chrono::system_clock::now().time_since_epoch());
      notify_("the lease will end in " +
              std::to_string(std::max<int64_t>(0, ended.at_ms() - now.count()) / 1000) + " s: " + reason);
    }
  }
  return std::nullopt;
}

void LeaseClient::report_position(const pool::Queued& queued) {
  const auto& request = settings_.address.request;
  const std::string what = std::to_string(request.gpus()) + (request.gpus() == 1 ? " GPU" : " GPUs");
  const std::string text = "waiting for " + what + ": position " + std::to_string(queued.place()) + " of " +
                           std::to_string(queued.waiting()) + " in the queue" +
                           (queued.why().empty() ? "" : "; " + queued.why());
  const auto now = Clock::now();
  if (text == last_message_ || now - last_message_at_ < kMessageInterval) return;
  notify_(text);
  last_message_ = text;
  last_message_at_ = now;
}

}  // namespace gpupool::lease_client
