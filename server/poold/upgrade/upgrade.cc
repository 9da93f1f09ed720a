#include "server/poold/upgrade/upgrade.h"

#include <utility>

#include "common/log/log.h"
#include "common/version.h"

namespace gpupool::server {
namespace {

// The conditions for await() have no event in common, and usually hold within milliseconds: it looks this
// often.
constexpr std::chrono::milliseconds kLook{1};
constexpr std::chrono::milliseconds kLogPatience{1'000};

}  // namespace

void Upgrade::begin(Begun begun) {
  if (stopped_) return begun(Error{ErrorCode::closed, "poold is shutting down"});
  if (under_way_) return begun(Error{ErrorCode::refused, "an upgrade is under way"});
  under_way_ = true;
  begun_ = std::move(begun);
  host_.hold_work();
  deadline_ = Clock::now() + kPatience;
  await([this] { return !host_.obstacle().empty(); }, [this] { check(); });
}

void Upgrade::check() {
  if (const std::string why = host_.obstacle(); !why.empty()) return refuse({ErrorCode::refused, why});
  auto program = installed_program(arguments_);
  if (!program) return refuse(program.error());
  program_ = std::move(*program);
  log::info("upgrade_begins", {{"program", program_.path}});
  CheckedProgram::start(context_, program_, host_.state(), [this](const Result<std::string>& version) {
    if (stopped_) return;
    if (!version) return refuse(version.error());
    std::exchange(begun_, nullptr)(version);
    close_doors();
  });
}

void Upgrade::refuse(const Error& error) {
  under_way_ = false;
  log::warning("not_upgraded", {{"reason", error.message}});
  host_.release_work();
  std::exchange(begun_, nullptr)(error);
}

void Upgrade::stop() {
  stopped_ = true;
  timer_.cancel();
  blocked_.reset();
  if (const auto begun = std::exchange(begun_, nullptr))
    begun(Error{ErrorCode::closed, "poold is shutting down"});
}

void Upgrade::abort(const std::string& why) {
  log::error("not_upgraded", {{"reason", why}, {"note", "this version goes on"}});
  blocked_.reset();
  under_way_ = false;
  host_.undo();
}

// Calls `then` when nothing is pending, or at the deadline.
void Upgrade::await(std::function<bool()> pending, std::function<void()> then) {
  if (stopped_) return;
  if (Clock::now() >= deadline_ || !pending()) return then();
  timer_.expires_after(kLook);
  timer_.async_wait(
      [this, pending = std::move(pending), then = std::move(then)](const asio::error_code& status) {
        if (!status) await(pending, then);
      });
}

void Upgrade::close_doors() {
  host_.close_doors();
  deadline_ = Clock::now() + kPatience;
  await(host_.has_waiting, [this] {
    host_.give_up_waiting();
    end_spare_workers();
  });
}

void Upgrade::end_spare_workers() {
  host_.end_spare_workers();
  deadline_ = Clock::now() + kPatience;
  await([this] { return host_.has_spare_workers() || host_.is_closing() || host_.has_waiting(); },
        [this] {
          // The next program is told of sessions' workers alone: it would not wait for this one, and would
          // give its user to another.
          if (host_.has_spare_workers()) return abort("a worker without a session does not end");
          host_.give_up_waiting();
          check_again();
        });
}

// Files and sessions may have changed since the first check, and after execute() there is no way back.
void Upgrade::check_again() {
  CheckedProgram::start(context_, program_, host_.state(), [this](const Result<std::string>& version) {
    if (stopped_) return;
    if (!version) return abort(version.error().message);
    // A signal that has been delivered before is handled during await(): poold may be asked to end.
    blocked_.emplace();
    deadline_ = Clock::now() + kPatience;
    bool first = true;  // one round of the event loop handles the signals that came before they were blocked
    await([this, first]() mutable { return std::exchange(first, false) || host_.has_waiting(); },
          [this] { execute_program(); });
  });
}

void Upgrade::execute_program() {
  host_.give_up_waiting();
  if (const std::string why = host_.obstacle(); !why.empty()) return abort(why);
  log::info("upgrading", {{"program", program_.path}, {"from", kVersion}});
  (void)log::flush(kLogPatience);
  abort(execute(program_, host_.state()).message);
}

}  // namespace gpupool::server
