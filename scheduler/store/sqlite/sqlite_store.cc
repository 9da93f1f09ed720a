#include "scheduler/store/sqlite/sqlite_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <mutex>
#include <system_error>
#include <thread>

#include "scheduler/store/sqlite/database.h"

namespace gpupool::scheduler {
namespace {

using namespace std::chrono_literals;
using sqlite::Database;
using sqlite::Statement;

constexpr auto kLockEvery = 50ms;

// WAL: readers do not wait for the writer. FULL: committed transactions survive a power failure.
constexpr const char* kSetUp =
    "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;"
    "CREATE TABLE IF NOT EXISTS entries (key BLOB PRIMARY KEY NOT NULL, value BLOB NOT NULL) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS leadership (only_one INTEGER PRIMARY KEY CHECK (only_one = 1), term INTEGER "
    "NOT NULL, address BLOB NOT NULL);"
    "INSERT OR IGNORE INTO leadership VALUES (1, 0, x'');";

// Returns the exclusive end of the key range with this prefix; empty: no end.
std::string prefix_end(std::string prefix) {
  while (!prefix.empty() && prefix.back() == '\xff') prefix.pop_back();
  if (!prefix.empty()) ++prefix.back();
  return prefix;
}

class SqliteStore : public Store {
 public:
  SqliteStore(std::string file, Database database) : file_(std::move(file)), database_(std::move(database)) {}
  ~SqliteStore() override { resign(); }

  Result<void> prepare() {
    if (auto good = database_.run(kSetUp); !good) return failure(good.error());
    for (const auto& [statement, text] :
         {std::pair(&put_, "INSERT INTO entries VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET value = ?2"),
          std::pair(&erase_, "DELETE FROM entries WHERE key = ?1"),
          std::pair(&term_, "SELECT term, address FROM leadership"),
          std::pair(&lead_, "UPDATE leadership SET term = term + 1, address = ?1"),
          std::pair(
              &all_,
              "SELECT key, value FROM entries WHERE key >= ?1 AND (?2 = x'' OR key < ?2) ORDER BY key")}) {
      auto made = database_.prepare(text);
      if (!made) return failure(made.error());
      *statement = std::move(*made);
    }
    return {};
  }

  Result<uint64_t> campaign(const std::string& address, std::chrono::milliseconds timeout) override {
    resign();
    const std::string lock = file_ + ".leader";
    const int opened = ::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (opened < 0)
      return failure({ErrorCode::unavailable, "'" + lock + "': " + std::generic_category().message(errno)});
    const auto until = std::chrono::steady_clock::now() + timeout;
    while (::flock(opened, LOCK_EX | LOCK_NB) != 0) {
      const int error = errno;
      if ((error == EWOULDBLOCK || error == EINTR) && std::chrono::steady_clock::now() < until) {
        std::this_thread::sleep_for(kLockEvery);
        continue;
      }
      ::close(opened);
      if (error != EWOULDBLOCK)
        return failure({ErrorCode::unavailable, "'" + lock + "': " + std::generic_category().message(error)});
      learn_leader();
      return Error{ErrorCode::refused, "another scheduler on this host is the leader in " + describe()};
    }
    lock_ = opened;
    const auto term = become_leader(address);
    if (!term)
      resign();
    else
      leads_ = true;
    return term;
  }

  void resign() override {
    leads_ = false;
    if (lock_ >= 0) ::close(std::exchange(lock_, -1));
  }
  bool leads() const override { return leads_; }
  std::optional<std::string> leader() const override {
    const std::lock_guard lock(mutex_);
    return leader_;
  }

  Result<std::vector<Entry>> all(const std::string& prefix) override {
    std::vector<Entry> entries;
    const std::string end = prefix_end(prefix);
    all_.bind(1, prefix).bind(2, end);
    for (;;) {
      const auto row = all_.step();
      if (!row) return failure(row.error());
      if (!*row) return entries;
      entries.emplace_back(all_.text(0), all_.text(1));
    }
  }

  Result<void> write(const std::vector<Write>& writes, uint64_t term) override {
    if (!leads_) return Error{ErrorCode::refused, "not the leader"};
    return transaction([&]() -> Result<void> {
      const auto row = term_.step();
      if (!row) return row.error();
      const bool present = *row && term_.number(0) == term;
      term_.reset();
      if (!present) return Error{ErrorCode::refused, "another scheduler is the leader"};
      for (const Write& write : writes) {
        Statement& statement =
            write.value ? put_.bind(1, write.key).bind(2, *write.value) : erase_.bind(1, write.key);
        if (const auto done = statement.step(); !done) return done.error();
      }
      return {};
    });
  }

  std::string describe() const override { return "sqlite:" + file_; }

 private:
  Error failure(const Error& why) const { return {why.code, "the store " + describe() + ": " + why.message}; }

  template <class Work>
  Result<void> transaction(Work work) {
    if (auto begun = database_.run("BEGIN IMMEDIATE"); !begun) return failure(begun.error());
    Result<void> done = work();
    if (done) done = database_.run("COMMIT");
    if (done) return done;
    (void)database_.run("ROLLBACK");
    return failure(done.error());
  }

  Result<uint64_t> become_leader(const std::string& address) {
    uint64_t term = 0;
    const auto taken = transaction([&]() -> Result<void> {
      if (const auto done = lead_.bind(1, address).step(); !done) return done.error();
      const auto row = term_.step();
      if (!row) return row.error();
      term = term_.number(0);
      term_.reset();
      return {};
    });
    if (!taken) return taken.error();
    const std::lock_guard lock(mutex_);
    leader_ = address;
    return term;
  }

  void learn_leader() {
    const auto row = term_.step();
    if (!row || !*row) return;
    const std::lock_guard lock(mutex_);
    leader_ = term_.text(1);
    if (leader_->empty()) leader_.reset();
    term_.reset();
  }

  const std::string file_;
  Database database_;
  Statement put_, erase_, term_, lead_, all_;
  int lock_ = -1;
  std::atomic<bool> leads_ = false;
  mutable std::mutex mutex_;
  std::optional<std::string> leader_;
};

}  // namespace

Result<std::unique_ptr<Store>> open_sqlite_store(const std::string& file) {
  auto database = Database::open(file);
  if (!database)
    return Error{ErrorCode::unavailable, "the store sqlite:" + file + ": " + database.error().message};
  auto store = std::make_unique<SqliteStore>(file, std::move(*database));
  if (auto good = store->prepare(); !good) return good.error();
  return std::unique_ptr<Store>(std::move(store));
}

}  // namespace gpupool::scheduler
