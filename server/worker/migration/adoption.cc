#include "server/worker/migration/adoption.h"

#include <algorithm>
#include <string>
#include <utility>

#include "protocol/calls/row_ids.h"
#include "protocol/wire/commands.h"
#include "server/worker/migration/departure.h"
#include "server/worker/migration/history_rules.h"
#include "server/worker/session/session.h"

namespace gpupool::worker {
namespace {

using transport::Clock;

constexpr std::chrono::seconds kSourceTime{20};  // until the source connects
constexpr std::chrono::seconds kSilentTime{60};  // of the source, between two commands
constexpr std::chrono::seconds kCopyTime{60};    // for the last copies on the device
constexpr std::chrono::seconds kAnswerTime{5};

}  // namespace

void Adoption::take(std::unique_ptr<transport::Connection> source) {
  const std::lock_guard lock(mutex_);
  if (source_ || stopped_) return;  // a second one
  source_ = std::move(source);
  changed_.notify_all();
}

void Adoption::stop() {
  const std::lock_guard lock(mutex_);
  stop_locked();
}

void Adoption::stop_locked() {
  stopped_ = true;
  if (source_) source_->close();
  changed_.notify_all();
}

// Until there is an adoption the source is left alone: poold, which sends a suspended session, learns from
// the client why it has not asked for one.
void Adoption::client_is_lost() {
  const std::lock_guard lock(mutex_);
  client_lost_ = true;
  if (underway_) stop_locked();
}

Result<uint64_t> Adoption::run() {
  {
    const std::lock_guard lock(mutex_);
    if (client_lost_) stop_locked();
    underway_ = true;
  }
  auto adopted = adopt();
  const std::lock_guard lock(mutex_);
  underway_ = false;
  return adopted;
}

Result<uint64_t> Adoption::adopt() {
  transport::Connection* source = nullptr;
  if (!session_.start.bulk_connections)
    return Error{ErrorCode::unavailable, "no other server can connect to this one"};
  {
    const Waiting waiting("the server that the session comes from");
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kSourceTime, [this] { return source_ || stopped_; });
    if (stopped_ || !source_)
      return Error{ErrorCode::lost, "the server that the session comes from did not connect"};
    source = source_.get();
  }
  const auto deadline = Clock::now() + kAnswerTime;
  auto welcomed = session_.start.welcome_bulk(*source, deadline, false);
  running_ = true;
  auto adopted = welcomed ? execute_all(*source) : Result<uint64_t>(welcomed.error());
  running_ = false;
  const std::string reason = adopted ? "" : adopted.error().message;
  const auto answered = send_answer(*source, adopted ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED, reason,
                                    Clock::now() + kAnswerTime);
  if (adopted && !answered) return answered.error();
  return adopted;
}

// Kernels get textures and surfaces as numbers, which the program may have stored anywhere.
void Adoption::expect_object(const CommandReceiver::Received& command) {
  const uint16_t id = command.header.id;
  if (!command.checks || (id != cuda::row_id::cuTexObjectCreate && id != cuda::row_id::cuSurfObjectCreate))
    return;
  wire::Reader reader(command.expected);
  session_.arrays.expect_object(reader.get<unsigned long long>());
}

Result<uint64_t> Adoption::execute_all(transport::Connection& source) {
  CommandReceiver in(source);
  bool copying = false;
  while (true) {
    const auto received = [&] {
      const Waiting waiting("the server that sends the session");
      return in.next(Clock::now() + kSilentTime);
    }();
    if (!received) return received.error();
    const std::string name = command_name(received->header.id);
    if (received->header.id == static_cast<uint16_t>(wire::Command::end_migration)) {
      wire::Reader reader(received->body);
      const auto end = reader.get<wire::EndMigration>();
      if (!reader.finished()) return Error{ErrorCode::malformed, "the end of the migration is malformed"};
      const CUresult deferred = session_.replies.take_deferred();
      if (deferred != CUDA_SUCCESS)
        return Error{ErrorCode::refused, "a command failed later: " + error_text(deferred)};
      if (!await_idle(session_, kCopyTime))
        return Error{ErrorCode::lost, "the copies to the device did not end"};
      return end.sequence;
    }
    const auto id = static_cast<wire::Command>(received->header.id);
    // An address may be mapped again at once, because the source has waited for the free before it.
    if (id == wire::Command::map_memory) session_.memory.settle();
    // Frees and changes of mappings wait for no work of the session; the source's was done.
    if (id == wire::Command::copy_to_device)
      copying = true;
    else if (changes_history(received->header.id) || id == wire::Command::free_memory) {
      if (std::exchange(copying, false) && !await_idle(session_, kCopyTime))
        return Error{ErrorCode::lost, "the copies to the device did not end"};
    }
    expect_object(*received);
    const auto result = session_.executor.execute_adopted(received->header, received->body);
    session_.arrays.expect_object(std::nullopt);
    if (!result) return Error{ErrorCode::malformed, name + ": malformed"};
    if (*result != CUDA_SUCCESS) return Error{ErrorCode::refused, name + ": " + error_text(*result)};
    // The next command may need what a destroyed array was charged.
    if (id == wire::Command::destroy_array && !await_idle(session_, kCopyTime))
      return Error{ErrorCode::lost, "an array could not be destroyed"};
    const auto reply = std::span<const std::byte>(session_.replies.body);
    if (received->checks && !std::ranges::equal(reply, received->expected))
      return Error{ErrorCode::refused, name + ": the result differs from the one that the program knows"};
  }
}

}  // namespace gpupool::worker
