#include "server/poold/workers/worker_log.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "common/log/log.h"
#include "common/log/relayed_line.h"
#include "server/sockets/descriptor_closer.h"
#include "server/sockets/untrusted_socket.h"

namespace gpupool::server {
namespace {

constexpr size_t kPiece = 16 * 1024;
constexpr int kMostPiecesAtEnd = 64;  // another process may hold the worker's end and go on writing

// Fields that poold sets itself.
bool is_reserved(const std::string& key) {
  return key == "time" || key == "level" || key == "component" || key == "pid" || key == "event" ||
         key == "session";
}

}  // namespace

WorkerLog::WorkerLog(asio::io_context& context, int socket, pid_t worker)
    : socket_(context, socket), worker_(worker), since_(std::chrono::steady_clock::now()) {}

void WorkerLog::watch(std::function<void(const std::string& why)> misbehaves) {
  misbehaves_ = std::move(misbehaves);
  await_more();
}

void WorkerLog::await_more() {
  socket_.async_wait(asio::posix::stream_descriptor::wait_read,
                     [self = shared_from_this()](const asio::error_code& status) {
                       if (status || !self->socket_.is_open()) return;
                       const auto read = self->read_some();
                       if (read || read.error().code == ErrorCode::limit) return self->await_more();
                       if (read.error().code == ErrorCode::malformed)
                         self->misbehaves_("its log: " + read.error().message);
                     });
}

// Returns the errors of receive_bytes().
Result<void> WorkerLog::read_some() {
  char bytes[kPiece];
  const auto got = receive_bytes(socket_.native_handle(), std::as_writable_bytes(std::span(bytes)));
  if (!got) return got.error();
  take({bytes, *got});
  return {};
}

void WorkerLog::finish() {
  if (!socket_.is_open()) return;
  for (int count = 0; count < kMostPiecesAtEnd && read_some(); ++count) {
  }
  if (!line_.empty()) end_line();
  report_lost();
  close_connection(socket_.release());
}

void WorkerLog::take(std::string_view bytes) {
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    const std::string_view part = bytes.substr(0, end);
    const size_t kept = std::min(part.size(), kMostLine - line_.size());
    line_ += part.substr(0, kept);
    truncated_bytes_ += part.size() - kept;
    if (end == bytes.npos) return;
    end_line();
    bytes.remove_prefix(end + 1);
  }
}

void WorkerLog::end_line() {
  const std::string line = std::exchange(line_, {});
  const size_t cut = std::exchange(truncated_bytes_, 0);
  if (line.empty()) return;
  if (!may_write()) {
    ++lost_;
    return;
  }
  report_lost();
  std::vector<log::Field> fields;
  if (session_ != 0) fields.emplace_back("session", session_);
  const log::Process worker{"worker", worker_};
  const auto relayed = cut == 0 ? log::parse_relayed(line) : std::nullopt;
  if (!relayed) {
    fields.emplace_back("line", line);
    if (cut != 0) fields.emplace_back("bytes_cut", cut);
    return log::write_for(worker, log::Level::info, "worker_output", fields);
  }
  for (const auto& [key, value, quoted] : relayed->parts) {
    if (is_reserved(key)) continue;
    if (quoted)
      fields.emplace_back(key, value);
    else
      fields.emplace_back(key, log::Number{value});
  }
  log::write_for(worker, relayed->level, relayed->event, fields);
}

bool WorkerLog::may_write() {
  const auto now = std::chrono::steady_clock::now();
  const std::chrono::duration<double> passed = now - std::exchange(since_, now);
  allowance_ = std::min(kMostAtOnce, allowance_ + passed.count() * kLinesPerSecond);
  if (allowance_ < 1) return false;
  --allowance_;
  return true;
}

void WorkerLog::report_lost() {
  if (lost_ == 0) return;
  log::warning("worker_lines_lost", {{"worker", worker_},
                                     {"session", session_},
                                     {"lines", std::exchange(lost_, 0)},
                                     {"reason", "rate limit exceeded"}});
}

}  // namespace gpupool::server
