#include "server/confinement/worker_users.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <utility>

namespace gpupool::server {
namespace {

constexpr std::pair<const char*, Sandbox> kSandboxes[] = {
    {"off", Sandbox::off}, {"on", Sandbox::on}, {"log", Sandbox::log}};
// The largest number means "no change" to the kernel.
constexpr uid_t kLargest = std::numeric_limits<uid_t>::max() - 1;
constexpr uid_t kMost = 1u << 20;  // in a range

std::optional<uid_t> to_number(std::string_view text) {
  uid_t number = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  if (read.ec != std::errc() || read.ptr != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace

const char* name_of(Sandbox sandbox) {
  for (const auto& [name, one] : kSandboxes) {
    if (one == sandbox) return name;
  }
  return "";
}

bool parse(const std::string& name, Sandbox& out) {
  const auto* const found = std::find_if(std::begin(kSandboxes), std::end(kSandboxes),
                                         [&](const auto& one) { return one.first == name; });
  if (found == std::end(kSandboxes)) return false;
  out = found->second;
  return true;
}

Result<WorkerUsers> WorkerUsers::parse(const std::string& text) {
  const auto wrong = [&](const std::string& why) {
    return Error{ErrorCode::invalid, "'" + text + "' " + why};
  };
  WorkerUsers users;
  users.name_ = text;
  if (const auto one = to_number(text)) {
    if (*one == 0 || *one > kLargest)
      return wrong("is root or not a valid user ID; use an ordinary user, or a range such as 70000-70999");
    users.first_ = users.last_ = *one;
    return users;
  }
  const size_t dash = text.find('-');
  if (dash == std::string::npos) return users;
  const auto first = to_number(std::string_view(text).substr(0, dash)),
             last = to_number(std::string_view(text).substr(dash + 1));
  if (!first || !last) return users;  // a name with a '-'
  if (*first == 0 || *first >= *last || *last > kLargest || *last - *first >= kMost) {
    return wrong("is not a valid range of user IDs; must be FIRST-LAST with at most " +
                 std::to_string(kMost) + " IDs, without root, such as 70000-70999");
  }
  users.first_ = *first;
  users.last_ = *last;
  users.reserved_ = std::make_shared<std::vector<bool>>(users.size());
  return users;
}

Result<std::unique_ptr<WorkerUsers::ReservedUser>> WorkerUsers::reserve() {
  if (!one_per_worker()) return std::make_unique<ReservedUser>(name_, nullptr, 0, std::nullopt);
  for (size_t tried = 0; tried < size(); ++tried) {
    const size_t index = std::exchange(next_, (next_ + 1) % size());
    if ((*reserved_)[index]) continue;
    (*reserved_)[index] = true;
    const auto id = static_cast<uid_t>(first_ + index);
    return std::make_unique<ReservedUser>(std::to_string(id), reserved_, index, id);
  }
  return Error{ErrorCode::limit, "all " + std::to_string(size()) + " users of --worker-users are in use"};
}

std::unique_ptr<WorkerUsers::ReservedUser> WorkerUsers::restore(const std::string& name) {
  const auto number = to_number(name);
  if (!one_per_worker() || !number || *number < first_ || *number > last_)
    return std::make_unique<ReservedUser>(name, nullptr, 0, std::nullopt);
  const size_t index = *number - first_;
  (*reserved_)[index] = true;
  return std::make_unique<ReservedUser>(name, reserved_, index, *number);
}

}  // namespace gpupool::server
