// The users that workers become when poold is root (--worker-users): one for all, or one of a range for each. poold's one thread.
#pragma once
#include <sys/types.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "protocol/wire/result.h"

namespace gpupool::server {

enum class Sandbox { off, on, log };  // log: system calls that would be refused are made, and the kernel logs them
const char* name_of(Sandbox sandbox);
bool parse(const std::string& name, Sandbox& out);

class WorkerUsers {
 public:
  // A user's name or number for all workers, or FIRST-LAST, numbers that need no entry in the host's database. Empty: workers stay root.
  static Result<WorkerUsers> parse(const std::string& text);

  // Each worker has its own, so that it can neither signal another one nor read what it made.
  bool one_each() const { return first_ != last_; }
  size_t size() const { return size_t{last_ - first_} + 1; }
  bool is_number() const { return last_ != 0; }
  uid_t first() const { return first_; }  // this and the next: of numbers
  uid_t last() const { return last_; }

  // A worker's user, taken until it is given back or this is destroyed, which must not be before the worker has been waited for.
  class Taken {
   public:
    Taken(std::string name, std::shared_ptr<std::vector<bool>> taken, size_t place) : name(std::move(name)), taken_(std::move(taken)), place_(place) {}
    ~Taken() { give_back(); }
    void give_back() {
      if (const auto taken = std::exchange(taken_, nullptr)) (*taken)[place_] = false;
    }
    Taken(const Taken&) = delete;
    Taken& operator=(const Taken&) = delete;
    const std::string name;

   private:
    std::shared_ptr<std::vector<bool>> taken_;
    const size_t place_;
  };
  // ErrorCode::limit: all are taken. One that was given back comes last, so that files which a worker left are long gone when they would be
  // another one's.
  Result<std::unique_ptr<Taken>> take();

 private:
  WorkerUsers() = default;

  std::string name_;
  uid_t first_ = 0, last_ = 0;
  std::shared_ptr<std::vector<bool>> taken_;
  size_t next_ = 0;
};

}  // namespace gpupool::server
