#include "protocol/transport/tls/certificate_watch.h"

#include <sys/stat.h>

#include <array>
#include <asio/post.hpp>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "common/blocked_signals.h"

namespace gpupool::transport::tls {
namespace {

// Identifies a version of a file: changes when the file is written or replaced, and when its mode or owner
// changes, for which a key may have been refused.
struct FileVersion {
  bool there = false;
  dev_t device = 0;
  ino_t inode = 0;
  off_t size = 0;
  int64_t seconds = 0, nanoseconds = 0;  // of the last change of content or status
  bool operator==(const FileVersion&) const = default;
};

FileVersion version_of(const std::string& path) {
  struct stat about {};
  if (path.empty() || ::stat(path.c_str(), &about) != 0) return {};
  return {true, about.st_dev, about.st_ino, about.st_size, about.st_ctim.tv_sec, about.st_ctim.tv_nsec};
}

using FileVersions = std::array<FileVersion, 3>;
FileVersions versions_of(const transport::TlsOptions& files) {
  return {version_of(files.certificate), version_of(files.key), version_of(files.ca)};
}

}  // namespace

struct CertificateWatch::Shared : std::enable_shared_from_this<Shared> {
  Shared(asio::io_context& context, transport::TlsOptions files, std::chrono::milliseconds interval,
         std::function<void(const Read&)> changed)
      : context(context), files(std::move(files)), interval(interval), changed(std::move(changed)) {}
  void run(FileVersions known);
  bool pause();  // false: this object is being destroyed
  void tell(Read read);

  asio::io_context& context;
  const transport::TlsOptions files;
  const std::chrono::milliseconds interval;
  const std::function<void(const Read&)> changed;
  std::mutex mutex;
  std::condition_variable ending;
  bool ended = false;  // the context may be gone
};

bool CertificateWatch::Shared::pause() {
  std::unique_lock lock(mutex);
  return !ending.wait_for(lock, interval, [this] { return ended; });
}

void CertificateWatch::Shared::run(FileVersions known) {
  while (pause()) {
    const FileVersions before = versions_of(files);
    if (before == known) continue;
    Read read = transport::tls::Context::server(files);
    if (versions_of(files) != before) continue;  // still being written
    known = before;
    tell(std::move(read));
  }
}

void CertificateWatch::Shared::tell(Read read) {
  const std::lock_guard lock(mutex);
  if (ended) return;
  asio::post(context, [self = shared_from_this(), read = std::move(read)] {
    if (!self->ended) self->changed(read);
  });
}

CertificateWatch::CertificateWatch(asio::io_context& context, transport::TlsOptions files,
                                   std::chrono::milliseconds interval,
                                   std::function<void(const Read&)> changed)
    : shared_(std::make_shared<Shared>(context, std::move(files), interval, std::move(changed))) {
  const FileVersions known = versions_of(shared_->files);
  const BlockedSignals blocked;
  std::thread([shared = shared_, known] { shared->run(known); }).detach();
}

CertificateWatch::~CertificateWatch() {
  const std::lock_guard lock(shared_->mutex);
  shared_->ended = true;
  shared_->ending.notify_all();
}

}  // namespace gpupool::transport::tls
