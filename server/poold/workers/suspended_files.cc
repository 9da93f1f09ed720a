#include "server/poold/workers/suspended_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <asio/post.hpp>
#include <cerrno>
#include <cstdio>
#include <system_error>
#include <thread>
#include <utility>

#include "common/blocked_signals.h"
#include "common/log/log.h"
#include "protocol/lease/token.h"

namespace gpupool::server {
namespace {

using suspension::Budget;
using suspension::Header;
using suspension::RecordReader;
using File = SuspendedFiles::File;
using Found = SuspendedFiles::Found;

constexpr std::string_view kEnding = ".gpupool-session", kPart = ".part";

Error os_error(const std::string& doing) {
  return {ErrorCode::unavailable, doing + ": " + std::generic_category().message(errno)};
}

bool sync_folder(const std::string& folder) {
  const SuspendedFiles::Descriptor opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return opened.number() >= 0 && ::fsync(opened.number()) == 0;
}

// What a thread needs to store a session.
struct StoreOrder {
  Header header;
  std::string folder;  // empty: in memory
  std::optional<suspension::Secret> secret;
  SuspendedFiles::Shared socket;
  std::shared_ptr<std::atomic<uint64_t>> bytes;
};

Result<File> store_in_memory(const StoreOrder& order, Budget& budget) {
  const auto memory =
      std::make_shared<const SuspendedFiles::Descriptor>(::memfd_create("suspended session", MFD_CLOEXEC));
  if (memory->number() < 0) return os_error("making a memory file");
  auto stored = suspension::store_session(order.socket->number(), memory->number(), order.header,
                                          order.secret, budget, *order.bytes);
  if (!stored) return stored.error();
  return File{.memory = memory, .bytes = *order.bytes, .secret = order.secret};
}

Result<void> write_to_disk(const StoreOrder& order, const std::string& part, Budget& budget) {
  const SuspendedFiles::Descriptor file(
      ::open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (file.number() < 0) return os_error("creating " + part);
  auto stored = suspension::store_session(order.socket->number(), file.number(), order.header, order.secret,
                                          budget, *order.bytes);
  if (stored && ::fdatasync(file.number()) != 0) stored = os_error("writing " + part);
  return stored;
}

Result<File> store_on_disk(const StoreOrder& order, Budget& budget) {
  const std::string path = order.folder + "/" + lease::hexadecimal(order.header.session_id()) +
                           std::string(kEnding),
                    part = path + std::string(kPart);
  auto written = write_to_disk(order, part, budget);
  if (written && ::rename(part.c_str(), path.c_str()) != 0) written = os_error("renaming " + part);
  if (!written) {
    ::unlink(part.c_str());
    return written.error();
  }
  if (!sync_folder(order.folder)) {
    const Error error = os_error("writing the folder " + order.folder);
    ::unlink(path.c_str());
    return error;
  }
  return File{.path = path, .bytes = *order.bytes, .secret = order.secret};
}

// The descriptor may be that of a memory file, which others read as well.
Result<void> restore_file(int file, const std::string& session_id, int socket,
                          const std::optional<suspension::Secret>& secret) {
  auto reader = RecordReader::open(file, secret);
  if (!reader) return reader.error();
  if (secret && !reader->encrypted())
    return Error{ErrorCode::malformed, "the file is no longer encrypted: it was replaced"};
  const auto header = suspension::read_header(*reader);
  if (!header) return header.error();
  if (header->session_id() != session_id)
    return Error{ErrorCode::malformed, "the file is that of another session"};
  return suspension::restore_session(*reader, socket);
}

Result<Found> look_at(const std::string& path, const std::optional<suspension::Secret>& secret,
                      bool only_encrypted) {
  const SuspendedFiles::Descriptor file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat about {};
  if (file.number() < 0 || ::fstat(file.number(), &about) != 0) return os_error(path);
  if (!S_ISREG(about.st_mode)) return Error{ErrorCode::invalid, path + ": not a regular file"};
  auto reader = RecordReader::open(file.number(), secret);
  if (!reader) return Error{reader.error().code, path + ": " + reader.error().message};
  if (only_encrypted && !reader->encrypted())
    return Error{ErrorCode::refused, path +
                                         ": not encrypted, so anybody may have made it; poold with a key "
                                         "reads only encrypted files, see --suspended-plaintext"};
  const auto header = suspension::read_header(*reader);
  if (!header) return Error{header.error().code, path + ": " + header.error().message};
  return Found{{.path = path,
                .bytes = static_cast<uint64_t>(about.st_size),
                .secret = reader->encrypted() ? secret : std::nullopt,
                .owned = false},
               *header};
}

std::vector<Found> scan_folder(const std::string& folder, const std::optional<suspension::Secret>& secret,
                               bool only_encrypted) {
  std::vector<Found> found;
  DIR* const listing = ::opendir(folder.c_str());
  if (!listing) {
    log::warning("suspended_folder",
                 {{"folder", folder}, {"reason", std::generic_category().message(errno)}});
    return found;
  }
  while (const dirent* const entry = ::readdir(listing)) {
    const std::string name = entry->d_name, path = folder + "/" + name;
    if (name.ends_with(std::string(kEnding) + std::string(kPart))) ::unlink(path.c_str());
    if (!name.ends_with(kEnding)) continue;
    auto one = look_at(path, secret, only_encrypted);
    if (one)
      found.push_back(std::move(*one));
    else
      log::warning("suspended_file_left", {{"reason", one.error().message}});
  }
  ::closedir(listing);
  return found;
}

}  // namespace

SuspendedFiles::Descriptor::~Descriptor() {
  if (number_ >= 0) ::close(number_);
}

SuspendedFiles::SuspendedFiles(asio::io_context& context, Settings settings)
    : settings_(std::move(settings)),
      state_(std::make_shared<State>(settings_.memory_bytes, settings_.disk_bytes)) {
  state_->context = &context;
}

SuspendedFiles::~SuspendedFiles() {
  const std::lock_guard lock(state_->mutex);
  state_->context = nullptr;
}

template <class R>
void SuspendedFiles::run(std::function<R(State&)> work, std::function<void(R)> done) {
  const BlockedSignals blocked;
  ++state_->running;
  const auto tell = [state = state_, done](R result) {
    const std::lock_guard lock(state->mutex);
    if (!state->context) return;
    asio::post(*state->context, [state, done, result = std::make_shared<R>(std::move(result))] {
      {
        const std::lock_guard still(state->mutex);
        if (!state->context) return;
      }
      --state->running;
      if (done) done(std::move(*result));
    });
  };
  try {
    std::thread([state = state_, work = std::move(work), tell]() mutable {
      R result = work(*state);
      work = nullptr;  // drops descriptors, which may block
      tell(std::move(result));
    }).detach();
  } catch (const std::system_error& failure) {
    if constexpr (std::is_constructible_v<R, Error>)
      tell(Error{ErrorCode::unavailable, std::string("cannot start a thread: ") + failure.what()});
    else
      tell(R());
  }
}

void SuspendedFiles::count(const File& file) {
  if (file.owned) budget_of(file).add(file.bytes);
}

void SuspendedFiles::uncount(const File& file) {
  if (file.owned) budget_of(file).give_back(file.bytes);
}

void SuspendedFiles::store(const Header& header, bool to_disk,
                           const std::optional<suspension::Secret>& secret, Shared socket,
                           std::shared_ptr<std::atomic<uint64_t>> bytes,
                           std::function<void(Result<File>)> done) {
  StoreOrder order{header, to_disk ? settings_.folder : "", secret, std::move(socket), std::move(bytes)};
  run<Result<File>>(
      [order = std::move(order)](State& state) {
        Budget& budget = order.folder.empty() ? state.memory : state.disk;
        auto file = order.folder.empty() ? store_in_memory(order, budget) : store_on_disk(order, budget);
        if (!file) budget.give_back(order.bytes->exchange(0));
        return file;
      },
      std::move(done));
}

void SuspendedFiles::restore(const File& file, const std::string& session_id, Shared socket,
                             std::function<void(Result<void>)> done) {
  run<Result<void>>(
      [file, session_id, socket = std::move(socket)](State&) -> Result<void> {
        if (file.memory)
          return restore_file(file.memory->number(), session_id, socket->number(), file.secret);
        const Descriptor opened(::open(file.path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
        if (opened.number() < 0) return os_error(file.path);
        return restore_file(opened.number(), session_id, socket->number(), file.secret);
      },
      std::move(done));
}

void SuspendedFiles::look(const std::string& path, std::function<void(Result<Found>)> done) {
  run<Result<Found>>([path, secret = settings_.secret, only_encrypted = settings_.encrypts_disk()](
                         State&) { return look_at(path, secret, only_encrypted); },
                     std::move(done));
}

void SuspendedFiles::scan(std::function<void(std::vector<Found>)> done) {
  run<std::vector<Found>>(
      [folder = settings_.folder, secret = settings_.secret,
       only_encrypted = settings_.encrypts_disk()](State& state) {
        auto found = scan_folder(folder, secret, only_encrypted);
        for (Found& one : found) one.file.owned = state.disk.take(one.file.bytes);
        return found;
      },
      std::move(done));
}

void SuspendedFiles::let_go(Shared socket) {
  run<int>([socket = std::move(socket)](State&) { return 0; }, nullptr);
}

void SuspendedFiles::remove(File file) {
  run<int>(
      [file = std::move(file)](State& state) {
        if (!file.path.empty() && ::unlink(file.path.c_str()) != 0)
          log::warning("suspended_file_left",
                       {{"file", file.path}, {"reason", std::generic_category().message(errno)}});
        if (file.owned) (file.path.empty() ? state.memory : state.disk).give_back(file.bytes);
        return 0;
      },
      nullptr);
}

}  // namespace gpupool::server
