#include "client/lease/watch.h"

#include <poll.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>
#include <utility>

namespace gpupool::client {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kPollInterval{20};  // without inotify
// pool-lease renames each version into place; at its end it removes the file and the folder.
constexpr uint32_t kChanges = IN_MOVED_TO | IN_DELETE | IN_DELETE_SELF | IN_MOVE_SELF;

class FolderWatch {
 public:
  FolderWatch(const std::string& folder, const Inotify& inotify)
      : inotify_(inotify.start(IN_NONBLOCK | IN_CLOEXEC)), longest_wait_(inotify.longest_wait) {
    if (inotify_ >= 0 &&
        inotify.add_watch(inotify_, folder.c_str(), kChanges | IN_ONLYDIR | IN_DONT_FOLLOW) < 0)
      stop();
  }
  ~FolderWatch() { stop(); }
  FolderWatch(const FolderWatch&) = delete;
  FolderWatch& operator=(const FolderWatch&) = delete;

  // Blocks until the folder has changed since the last call, or since the constructor's; at most until the
  // deadline. May return sooner.
  void wait(Clock::time_point deadline) {
    const auto until = std::min(deadline, Clock::now() + (inotify_ < 0 ? kPollInterval : longest_wait_));
    if (inotify_ < 0) return std::this_thread::sleep_until(until);
    pollfd changes{inotify_, POLLIN, 0};
    int ready;
    do {
      const auto rest = std::max(std::chrono::ceil<milliseconds>(until - Clock::now()), milliseconds(0));
      ready = ::poll(&changes, 1, static_cast<int>(rest.count()));
    } while (ready < 0 && errno == EINTR);
    if (ready < 0 || (ready > 0 && !discard_events())) stop();
  }

 private:
  // Returns false if inotify fails.
  bool discard_events() {
    alignas(inotify_event) char events[4096];
    while (::read(inotify_, events, sizeof events) > 0) {
    }
    return errno == EAGAIN || errno == EINTR;
  }
  void stop() {
    if (inotify_ >= 0) ::close(std::exchange(inotify_, -1));
  }

  int inotify_;
  const milliseconds longest_wait_;
};

}  // namespace

Result<std::vector<LeasedServer>> await_named_servers(const std::string& text, const LeaseCondition& holds,
                                                      milliseconds limit) {
  return await_named_servers(text, holds, limit, {::inotify_init1, ::inotify_add_watch});
}

Result<std::vector<LeasedServer>> await_named_servers(const std::string& text, const LeaseCondition& holds,
                                                      milliseconds limit, const Inotify& inotify) {
  if (!text.starts_with(kLeaseScheme)) return named_servers(text);
  const auto deadline = Clock::now() + limit;
  // The watch begins before the first reading, so that no change between the two is missed.
  FolderWatch watch(lease_folder(text.substr(kLeaseScheme.size())), inotify);
  while (true) {
    const bool last = Clock::now() >= deadline;
    auto servers = named_servers(text);
    if (!servers || last || holds(*servers)) return servers;
    watch.wait(deadline);
  }
}

}  // namespace gpupool::client
