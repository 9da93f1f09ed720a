#include "server/worker/session/output_capture.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <memory>
#include <system_error>

namespace gpupool::worker {
namespace {

constexpr size_t kPieceBytes = 16 * 1024;
constexpr int kMaxPieces = 256;  // per flush: a kernel that prints endlessly must not block a wait forever
constexpr int kPipeBytes = 1 << 20;  // requested size; the system may grant less

}  // namespace

Result<void> OutputCapture::start() {
  for (int i = 0; i < 2; ++i) {
    int ends[2];
    const auto failure = [] {
      return Error{ErrorCode::unavailable,
                   std::string("cannot capture output: ") + std::generic_category().message(errno)};
    };
    if (::pipe2(ends, O_CLOEXEC) != 0) return failure();
    ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
    ::fcntl(ends[1], F_SETPIPE_SZ, kPipeBytes);
    std::fflush(i == 0 ? stdout : stderr);
    pipes_[i].saved = ::fcntl(i + 1, F_DUPFD_CLOEXEC, 3);
    pipes_[i].reader = ends[0];
    const bool moved = ::dup2(ends[1], i + 1) >= 0;
    ::close(ends[1]);
    if (!moved) return failure();
  }
  started_ = true;
  return {};
}

OutputCapture::~OutputCapture() {
  if (started_) std::fflush(stdout);
  for (int i = 0; i < 2; ++i) {
    if (pipes_[i].saved >= 0) {
      ::dup2(pipes_[i].saved, i + 1);
      ::close(pipes_[i].saved);
    }
    if (pipes_[i].reader >= 0) ::close(pipes_[i].reader);
  }
}

void OutputCapture::flush() {
  if (!started_) return;
  std::fflush(stdout);
  drain();
}

void OutputCapture::drain() {
  if (!started_) return;
  const std::lock_guard lock(mutex_);
  for (int i = 0; i < 2; ++i) {
    std::byte piece[kPieceBytes];
    for (int count = 0; count < kMaxPieces; ++count) {
      const ssize_t got = ::read(pipes_[i].reader, piece, sizeof piece);
      if (got <= 0) break;
      outbox_.send(i == 0 ? wire::MessageKind::standard_output : wire::MessageKind::standard_error, 0, 0,
                   {piece, static_cast<size_t>(got)});
      if (static_cast<size_t>(got) < sizeof piece) break;
    }
  }
}

}  // namespace gpupool::worker
