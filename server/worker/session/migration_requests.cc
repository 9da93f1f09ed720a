#include "server/worker/session/migration_requests.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <span>
#include <utility>

#include "common/text/printable.h"

namespace gpupool::worker {
namespace {

using server::ControlKind;

static_assert(kMostMessageBytes <= server::kMostMigrationText);
// Calls of rouse_client() before the first break, and the most between two.
constexpr unsigned kFirstPatience = 2, kMostPatience = 16;

// Returns why the client cannot migrate the session, or null.
const char* migration_obstacle(const SessionStart& start) {
  if (!start.can_migrate) return "the client cannot migrate sessions: its version is too old";
  if (!start.resumable) return "only sessions that can be resumed can migrate: poold needs --resume-timeout";
  if (start.connection->direct_memory()) return "sessions over rdma cannot migrate, nor be suspended";
  return nullptr;
}

// True if the client is known to have received all bytes. It tells its position when it resumes. Bytes in
// shared memory count as received before they are read.
bool has_read_all(const transport::ResumableConnection& connection) {
  return connection.unacknowledged() == 0 && !connection.shares_memory();
}

}  // namespace

MigrationRequests::MigrationRequests(const SessionStart& start, Outbox& outbox)
    : start_(start), outbox_(outbox), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

MigrationRequests::~MigrationRequests() {
  use_file(-1);
  ::close(wake_);
}

void MigrationRequests::begin() {
  if (!start_.control) return;
  start_.control->handle(ControlKind::migrate,
                         [this](const server::ControlMessage& message) { receive(message); });
}

void MigrationRequests::end() {
  if (start_.control) start_.control->handle(ControlKind::migrate, nullptr);
}

void MigrationRequests::receive(const server::ControlMessage& message) {
  const uint64_t number = message.body<server::packet::Migrate>().number;
  if (const char* const obstacle = migration_obstacle(start_)) {
    if (message.descriptor >= 0) ::close(message.descriptor);
    (void)report(number, false, obstacle);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    use_file(message.descriptor);
    open_ = number;
    ticks_ = 0;
    patience_ = kFirstPatience;
    is_awake_ = false;
    unsent_ = message.payload;
  }
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_, &one, sizeof one);
}

void MigrationRequests::use_file(int descriptor) {
  if (const int before = std::exchange(file_, descriptor); before >= 0) ::close(before);
}

int MigrationRequests::take_file() {
  const std::lock_guard lock(mutex_);
  return std::exchange(file_, -1);
}

void MigrationRequests::send_to_client() {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = ::read(wake_, &count, sizeof count);
  wire::MigrationWish wish{};
  std::optional<std::string> address;
  {
    const std::lock_guard lock(mutex_);
    wish.number = open_;
    address = std::exchange(unsent_, std::nullopt);
  }
  if (!address) return;
  outbox_.send(wire::MessageKind::migration_wish, 0, 0, std::as_bytes(std::span(&wish, 1)),
               std::as_bytes(std::span(*address)));
}

void MigrationRequests::rouse_client() {
  {
    const std::lock_guard lock(mutex_);
    if (open_ == 0 || unsent_ || is_awake_ || start_.resumable->broken()) return;
    is_awake_ = has_read_all(*start_.resumable);
    if (is_awake_ || ++ticks_ < patience_) return;
    ticks_ = 0;
    patience_ = std::min(2 * patience_, kMostPatience);
  }
  start_.resumable->break_carrier({ErrorCode::lost, "its client does not read a request to migrate"});
}

void MigrationRequests::client_tries() {
  const std::lock_guard lock(mutex_);
  is_awake_ = true;
}

bool MigrationRequests::answered(const wire::EndMigration& answer, std::string_view reason) {
  if (answer.number != 0) {
    const std::lock_guard lock(mutex_);
    if (answer.number != open_) return false;
    open_ = 0;
    unsent_.reset();
    use_file(-1);
  }
  left_ = answer.migrated != 0;
  if (answer.number == 0 && !left_) return true;  // poold knows nothing of the attempt
  if (!report(answer.number, left_, printable_message(reason)) && !left_)
    outbox_.end("poold does not read its control socket");
  return true;
}

bool MigrationRequests::report(uint64_t number, bool migrated, std::string_view reason) {
  const server::packet::MigrationEnded ended{.number = number, .migrated = migrated ? 1u : 0u};
  return !start_.control || start_.control->send<ControlKind::migration_ended>(ended, reason).ok();
}

}  // namespace gpupool::worker
