// Reads, writes and removes the files of suspended sessions (server/suspension/session_stream.h) on threads,
// because file systems and workers may block. poold's thread calls and gets the results. Files in the folder
// are named after the session's id, have mode 0600, and end in ".part" until they are complete.
#pragma once
#include <asio/io_context.hpp>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "common/result.h"
#include "server/suspension/session_stream.h"

namespace gpupool::server {

class SuspendedFiles {
 public:
  struct Settings {
    uint64_t memory_bytes = 0;                 // limit of files in host memory; 0: none
    std::string folder;                        // empty: none on disk
    uint64_t disk_bytes = 0;                   // limit of files in the folder
    std::optional<suspension::Secret> secret;  // for encrypted files
    bool plaintext = false;  // although there is a secret, files on disk need not be encrypted

    bool encrypts_disk() const { return secret && !plaintext; }
  };
  // A descriptor that may be shared with a thread, and is closed with its last user's reference.
  class Descriptor {
   public:
    explicit Descriptor(int number) : number_(number) {}
    ~Descriptor();
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    int number() const { return number_; }

   private:
    const int number_;
  };
  using Shared = std::shared_ptr<const Descriptor>;
  // A complete file: in memory, or at a path.
  struct File {
    Shared memory;
    std::string path;
    uint64_t bytes = 0;
    std::optional<suspension::Secret> secret;  // nullopt: it is not encrypted
    bool owned = true;                         // counted in the limit, and removed when its session is over

    bool encrypted() const { return secret.has_value(); }
  };
  struct Found {
    File file;
    suspension::Header header;
  };

  SuspendedFiles(asio::io_context& context, Settings settings);
  ~SuspendedFiles();  // work that has not ended goes on without an answer
  SuspendedFiles(const SuspendedFiles&) = delete;
  SuspendedFiles& operator=(const SuspendedFiles&) = delete;

  const Settings& settings() const { return settings_; }
  uint64_t memory_used() const { return state_->memory.used(); }
  uint64_t disk_used() const { return state_->disk.used(); }
  // True until the results of all threads have been taken.
  bool busy() const { return state_->running != 0; }
  // Counts an owned file that this process's previous program has made, or does no longer.
  void count(const File& file);
  void uncount(const File& file);

  // Writes what the worker behind `socket` sends. Nothing remains of a file that is not complete.
  // `secret`: encrypts the file.
  void store(const suspension::Header& header, bool to_disk, const std::optional<suspension::Secret>& secret,
             Shared socket, std::shared_ptr<std::atomic<uint64_t>> bytes,
             std::function<void(Result<File>)> done);
  // Sends the file to the worker behind `socket`, and returns the worker's answer.
  void restore(const File& file, const std::string& session_id, Shared socket,
               std::function<void(Result<void>)> done);
  // Reads the beginning of a file.
  void look(const std::string& path, std::function<void(Result<Found>)> done);
  // Finds the files of the folder, and removes those that are not complete.
  void scan(std::function<void(std::vector<Found>)> done);
  // Removes the file, or drops what is in memory.
  void remove(File file);
  // Drops a reference to a socket on a thread: closing it may block, since the worker may have sent
  // descriptors that nobody has received.
  void let_go(Shared socket);

 private:
  struct State {
    State(uint64_t memory_limit, uint64_t disk_limit) : memory(memory_limit), disk(disk_limit) {}
    suspension::Budget memory, disk;
    size_t running = 0;  // threads whose results have not been taken; poold's thread
    std::mutex mutex;
    asio::io_context* context = nullptr;  // null: nobody takes results any more; guarded by `mutex`
  };
  suspension::Budget& budget_of(const File& file) const {
    return file.path.empty() ? state_->memory : state_->disk;
  }
  template <class R>
  void run(std::function<R(State&)> work, std::function<void(R)> done);

  const Settings settings_;
  const std::shared_ptr<State> state_;
};

}  // namespace gpupool::server
