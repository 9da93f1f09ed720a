// The source's side of a migration: sends the session to the target, as commands, first while the program
// runs and then what is left. The session stays as it is.
//
// Executor's thread, except where stated. A thread of its own connects to the target and sends the rounds.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <thread>

#include "protocol/transport/transport.h"
#include "server/worker/memory/device_memory.h"
#include "server/worker/migration/history.h"
#include "server/worker/migration/memory_rounds.h"
#include "server/worker/migration/target_stream.h"
#include "server/worker/migration/variables.h"

namespace gpupool::worker {

class Session;

// Waits until the session has no work on the device and nothing to send. Returns false if it still has after
// `longest`, or if it is over.
bool await_idle(Session& session, transport::Clock::duration longest);

// Names what prevents the session from migrating; null: nothing does.
const char* migration_obstacle(Session& session);
// The same for obstacles that the program may be about to remove.
const char* passing_obstacle(Session& session);

class Departure {
 public:
  explicit Departure(Session& session);
  ~Departure() { stop(); }
  Departure(const Departure&) = delete;
  Departure& operator=(const Departure&) = delete;

  // True while the session cannot begin: memory is being zeroed, or the last attempt is still ending.
  bool must_wait();
  // Opens the connection to the target, on another thread. Called once.
  using Connect = std::function<Result<std::unique_ptr<transport::Connection>>()>;
  // Connects to the target and sends what the session has, and from now on every command that changes it.
  // `to_file`: poold writes it to a file, so everything is sent by finish(), once.
  // `settled`: called once, on another thread or on this one, when little is left or something has failed.
  using Settled = std::function<void(const Result<void>&)>;
  void begin(const Connect& connect, bool to_file, Settled settled);
  bool begun() const { return attempt_ != nullptr; }
  // Sends the rest, with `sequence` as the number of the last command, and waits for the target's answer. The
  // session must be idle. Returns the reason if the target does not have all of it.
  Result<void> finish(uint64_t sequence);
  // Forgets the target. Does not wait for the thread, which may be waiting for the program's work.
  void end();
  // The same, and waits for it.
  void stop();

  // Call after each command that was executed successfully, if begun().
  void executed(const wire::CommandHeader& header, std::span<const std::byte> body);
  // For DeviceMemory::Reader. Any thread.
  bool is_reading(uint64_t address, uint64_t size) { return rounds_.is_being_read(address, size); }
  void before_unmap(uint64_t address, uint64_t size) {
    rounds_.forget(address, size);
    rounds_.await_read(address, size);
  }
  // Call before a context is destroyed, when its work is done.
  void leave(const ContextState& context) { rounds_.forget_context(context.object); }

 private:
  // Shared with the thread, which may outlive its use.
  struct Attempt {
    Attempt(std::atomic<uint64_t>& sent_bytes, bool to_file)
        : target(sent_bytes, to_file), to_file(to_file) {}
    TargetStream target;
    const bool to_file;
    std::atomic<bool> stop{false}, over{false};  // over: the thread ends
    Result<void> result;                         // of the rounds, when it is over
  };

  void check(Result<void> result) {
    if (status_ && !result) status_ = std::move(result);
  }
  void add(OutgoingCommand command);
  void add(wire::Command id, uint64_t context, std::span<const std::byte> body);
  void add_addresses();
  enum class Stage { contexts, others, on_memory };
  static Stage stage_of(const History::Entry& entry);
  void add_history(Stage stage);
  bool is_loaded(const History::Entry& load) const;
  void add_command(const History::Entry& entry);
  void add_entry(const History::Entry& entry);
  void add_places_of_variables(const History::Entry& load);
  void add_mapping(const DeviceMemory::Mapped& mapped);
  void add_new_mappings();
  void add_to_rounds(uint64_t address, uint64_t size, int device);
  void free(uint64_t address, uint64_t size, uint64_t context);
  void run_rounds(Attempt& attempt, const Connect& connect);
  Result<void> send_rest(uint64_t* bytes);
  Result<void> send_variables();
  Result<void> send_variable(uint64_t owner, const Variable& variable);
  Result<void> send_records();

  Session& session_;
  MemoryRounds rounds_;
  std::shared_ptr<Attempt> attempt_;  // the present one; null: none
  Result<void> status_;               // the first error
  bool beginning_ = false;
  VariableLists variables_;
  std::map<uint64_t, uint64_t> mapped_;  // memory that the target has mapped: address, size
  std::shared_ptr<Attempt> last_;        // the thread's
  std::thread thread_;
};

}  // namespace gpupool::worker
