// The users that workers become if poold is root (--worker-users): one for all workers, or one of a range for
// each. Used on poold's thread.
#pragma once
#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/result.h"

namespace gpupool::server {

enum class Sandbox { off, on, log };  // log: forbidden system calls are executed, and the kernel logs them
const char* name_of(Sandbox sandbox);
bool parse(const std::string& name, Sandbox& out);

class WorkerUsers {
 public:
  // Parses a user's name or ID for all workers, or FIRST-LAST, a range of IDs that need no entry in the user
  // database. Empty: workers stay root. ErrorCode::invalid: root, or not a valid range.
  static Result<WorkerUsers> parse(const std::string& text);

  // True if each worker has its own user, so that it can neither signal another worker nor access its files.
  bool one_per_worker() const { return first_ != last_; }
  size_t size() const { return size_t{last_ - first_} + 1; }
  bool is_number() const { return last_ != 0; }
  uid_t first() const { return first_; }  // only if is_number()
  uid_t last() const { return last_; }    // only if is_number()

  // A worker's user, reserved until release() or destruction. Call either only after the worker has been
  // waited for.
  class ReservedUser {
   public:
    ReservedUser(std::string name, std::shared_ptr<std::vector<bool>> reserved, size_t index,
                 std::optional<uid_t> own_id)
        : name(std::move(name)), reserved_(std::move(reserved)), index_(index), own_id_(own_id) {}
    ~ReservedUser() { release(); }
    void release() {
      if (const auto reserved = std::exchange(reserved_, nullptr)) (*reserved)[index_] = false;
    }
    ReservedUser(const ReservedUser&) = delete;
    ReservedUser& operator=(const ReservedUser&) = delete;
    const std::string name;
    // The ID of a user that no other worker has; nullopt: it is shared.
    std::optional<uid_t> own_id() const { return own_id_; }

   private:
    std::shared_ptr<std::vector<bool>> reserved_;
    const size_t index_;
    const std::optional<uid_t> own_id_;
  };
  // Reserves a user. ErrorCode::limit: all have a worker. A returned user is reused last, so that files of
  // its previous worker are gone by then.
  Result<std::unique_ptr<ReservedUser>> reserve();
  // Reserves the user of a worker that this process's previous program has started (server/poold/upgrade). A
  // name outside the present range is not recorded.
  std::unique_ptr<ReservedUser> restore(const std::string& name);
  // Where reserve() looks next.
  size_t next() const { return next_; }
  void set_next(size_t next) { next_ = next % size(); }

 private:
  WorkerUsers() = default;

  std::string name_;
  uid_t first_ = 0, last_ = 0;
  std::shared_ptr<std::vector<bool>> reserved_;
  size_t next_ = 0;
};

}  // namespace gpupool::server
