#include "tests/chaos/lease_ledger.h"

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>

#include "protocol/lease/token.h"

namespace gpupool::testing {
namespace {

using Json = nlohmann::json;

constexpr int64_t kSchedulersTurn = 10;  // ms
constexpr uint64_t kWhole = 1000;
constexpr uint64_t kAnySerial = ~uint64_t{0};

std::string word(const Json& line, const char* key) {
  return line.contains(key) && line[key].is_string() ? line[key].get<std::string>() : "";
}
int64_t number(const Json& line, const char* key) {
  return line.contains(key) && line[key].is_number_integer() ? line[key].get<int64_t>() : 0;
}

}  // namespace

int64_t milliseconds_of(const std::string& time) {
  tm utc{};
  int milliseconds = 0;
  if (std::sscanf(time.c_str(), "%d-%d-%dT%d:%d:%d.%dZ", &utc.tm_year, &utc.tm_mon, &utc.tm_mday,
                  &utc.tm_hour, &utc.tm_min, &utc.tm_sec, &milliseconds) != 7)
    return 0;
  utc.tm_year -= 1900;
  utc.tm_mon -= 1;
  return int64_t{::timegm(&utc)} * 1000 + milliseconds;
}

void LeaseLedger::token(const lease::Lease& lease) {
  Token token{lease::hexadecimal(lease.boot()), lease.issued_ms(), {}};
  token.shares.assign(lease.shares().begin(), lease.shares().end());
  leases_[{lease.node(), lease::hexadecimal(lease.id())}].tokens.try_emplace(lease.serial(),
                                                                             std::move(token));
}

bool LeaseLedger::in_use(const Key& key) const {
  return std::any_of(running_.begin(), running_.end(), [&](const auto& one) {
    const Session& session = sessions_[one.second];
    return session.node == key.first && session.lease == key.second;
  });
}

void LeaseLedger::ends_lease(const Key& key, uint64_t last_serial, int64_t at) {
  OnNode& known = leases_[key];
  End end{last_serial, {}};
  if (!in_use(key)) end.at = std::min(at, std::exchange(known.forgotten, {}).value_or(at));
  if (!known.ends.empty() && !known.ends.back().at)
    known.ends.back().last_serial = last_serial;  // the order was changed before the lease had ended
  else
    known.ends.push_back(end);
}

void LeaseLedger::is_gone(const Key& key, int64_t at) {
  OnNode& known = leases_[key];
  if (in_use(key))
    violations_.push_back("lease " + key.second + " was reported gone from " + key.first +
                          " while a session of it runs");
  if (!known.ends.empty() && !known.ends.back().at)
    known.ends.back().at = at;
  else
    known.forgotten = at;
}

void LeaseLedger::log_line(const std::string& node, const std::string& text) {
  const Json line = Json::parse(text, nullptr, false);
  if (!line.is_object()) return;
  const std::string event = word(line, "event"), lease = word(line, "lease");
  const int64_t at = milliseconds_of(word(line, "time"));
  if (event == "scheduler_attends" && !word(line, "boot").empty()) {
    boot_[node] = word(line, "boot");
    runs_.try_emplace(boot_[node], Run{node, {}});
  } else if (event == "session_started" && !lease.empty()) {
    leases_[{node, lease}].forgotten.reset();  // poold had forgotten it because it had no sessions
    running_[{node, static_cast<uint64_t>(number(line, "session"))}] = sessions_.size();
    sessions_.push_back({node, lease, number(line, "worker"), at, {}});
  } else if (event == "session_ended" && !lease.empty()) {
    const auto found = running_.find({node, static_cast<uint64_t>(number(line, "session"))});
    if (found == running_.end()) return;
    sessions_[found->second].ended = at;
    running_.erase(found);
  } else if (event == "lease_ends") {
    ends_lease({node, lease}, line.value("last_serial", kAnySerial), at);
  } else if (event == "lease_gone") {
    is_gone({node, lease}, at);
  }
}

void LeaseLedger::poold_gone(const std::string& node, int64_t at) {
  for (auto one = running_.begin(); one != running_.end();) {
    if (one->first.first != node) {
      ++one;
      continue;
    }
    sessions_[one->second].ended = at;
    one = running_.erase(one);
  }
  for (auto& [key, known] : leases_) {
    if (key.first == node && !known.ends.empty() && !known.ends.back().at) known.ends.back().at = at;
  }
  const auto boot = boot_.find(node);
  if (boot == boot_.end()) return;
  runs_.at(boot->second).gone = at;
  boot_.erase(boot);
}

// Tokens up to the last serial of an end belong to one grant, as do those for one poold process.
std::vector<LeaseLedger::Grant> LeaseLedger::grants_of(const OnNode& known) const {
  std::vector<Grant> grants;
  std::optional<size_t> last_part;
  for (const auto& [serial, token] : known.tokens) {
    const auto end = std::find_if(known.ends.begin(), known.ends.end(),
                                  [&, serial = serial](const End& one) { return serial <= one.last_serial; });
    const auto part = static_cast<size_t>(end - known.ends.begin());
    if (last_part == part && grants.back().boot == token.boot) continue;  // renewed
    last_part = part;
    Grant& grant = grants.emplace_back(Grant{token.boot, token.issued, {}, token.shares});
    if (end != known.ends.end())
      grant.end = end->at;
    else if (known.forgotten && *known.forgotten >= token.issued)
      grant.end = known.forgotten;
    const auto run = runs_.find(token.boot);
    // A poold that ended before it logged its boot id has served no sessions.
    const std::optional<int64_t> gone = run == runs_.end() ? token.issued : run->second.gone;
    if (gone && (!grant.end || *gone < *grant.end)) grant.end = gone;
  }
  return grants;
}

size_t LeaseLedger::grants() const {
  size_t all = 0;
  for (const auto& [key, known] : leases_) all += grants_of(known).size();
  return all;
}

// The beginning or the end of a grant's use of one GPU.
struct LeaseLedger::Change {
  int64_t at;
  bool begins;
  const Key* lease;
  Use use;
  bool operator<(const Change& other) const {
    return std::tie(at, begins) < std::tie(other.at, other.begins);
  }
};

// Returns the grant's use by GPU. If it has several shares of one GPU, they count together.
std::map<std::string, LeaseLedger::Use> LeaseLedger::uses_of(const Grant& grant) const {
  std::map<std::string, Use> uses;
  for (const lease::Share& share : grant.shares) {
    const auto gpu = memory_.find(share.gpu_uuid());
    const uint64_t all = gpu == memory_.end() ? 0 : gpu->second;
    Use& use = uses[share.gpu_uuid()];
    use.milli += share.compute_milli();
    use.bytes += share.memory_bytes() == 0 ? all : share.memory_bytes();
  }
  return uses;
}

void LeaseLedger::find_double_grants(const std::map<Key, std::vector<Grant>>& grants,
                                     std::vector<std::string>& found) const {
  std::map<std::string, std::vector<Change>> by_gpu;
  for (const auto& [key, all] : grants) {
    for (const Grant& grant : all) {
      // The scheduler stamps tokens with the start of its turn, so the end of the previous lease, which
      // allows the grant, may be logged slightly later.
      const auto end = grant.end ? std::optional(*grant.end - kSchedulersTurn) : std::nullopt;
      if (end && *end <= grant.issued) continue;
      for (const auto& [uuid, use] : uses_of(grant)) {
        by_gpu[uuid].push_back({grant.issued, true, &key, use});
        if (end) by_gpu[uuid].push_back({*end, false, &key, use});
      }
    }
  }
  for (auto& [uuid, changes] : by_gpu) {
    std::sort(changes.begin(), changes.end());  // at equal times ends come before beginnings
    find_double_grants_of(uuid, changes, found);
  }
}

void LeaseLedger::find_double_grants_of(const std::string& uuid, const std::vector<Change>& changes,
                                        std::vector<std::string>& found) const {
  const auto gpu = memory_.find(uuid);
  if (gpu == memory_.end()) {
    found.push_back("lease of unknown GPU " + uuid);
    return;
  }
  // By lease. A lease that returns before its node has noticed the departure has two grants there, but uses
  // the GPU once.
  std::map<std::string, std::vector<Use>> live;
  const auto total = [&] {
    Use all;
    for (const auto& [lease, uses] : live) {
      const auto larger = [&](uint64_t Use::*amount) { return std::ranges::max(uses, {}, amount).*amount; };
      all.milli += larger(&Use::milli), all.bytes += larger(&Use::bytes);
    }
    return all;
  };
  for (const Change& change : changes) {
    const std::string& lease = change.lease->second;
    if (!change.begins) {
      std::vector<Use>& uses = live.at(lease);
      uses.erase(std::find(uses.begin(), uses.end(), change.use));
      if (uses.empty()) live.erase(lease);
      continue;
    }
    const Use before = total();
    live[lease].push_back(change.use);
    const Use now = total();
    if (now == before || (now.milli <= kWhole && now.bytes <= gpu->second)) continue;
    std::string names;
    for (const auto& [one, uses] : live) names += " " + one.substr(0, 8);
    found.push_back("GPU " + uuid + " of " + change.lease->first + " was granted twice at " +
                    std::to_string(change.at) + ": " + std::to_string(now.milli) + " thousandths and " +
                    std::to_string(now.bytes) + " of " + std::to_string(gpu->second) + " bytes, to" + names);
  }
}

void LeaseLedger::find_sessions_without_lease(const std::map<Key, std::vector<Grant>>& grants,
                                              std::vector<std::string>& found) const {
  for (const Session& session : sessions_) {
    const auto at = grants.find({session.node, session.lease});
    if (at == grants.end() || at->second.empty()) {
      found.push_back("a session ran on " + session.node + " with lease " + session.lease +
                      ", which was never granted");
      continue;
    }
    const bool has_grant = std::any_of(at->second.begin(), at->second.end(), [&](const Grant& grant) {
      if (&grant != &at->second.front() && session.started < grant.issued) return false;
      return !grant.end || (session.started <= *grant.end && session.ended && *session.ended <= *grant.end);
    });
    if (!has_grant)
      found.push_back("a session of lease " + session.lease + " ran on " + session.node +
                      " after the end of the lease");
  }
}

// A lease does not go on at a poold that was restarted, unless it was somewhere else meanwhile.
void LeaseLedger::find_new_processes(const std::map<Key, std::vector<Grant>>& grants,
                                     std::vector<std::string>& found) const {
  // A lease may leave a node before its program has read the token for it.
  const auto leaves_elsewhere = [&](const Key& key, int64_t time) {
    return std::any_of(leases_.begin(), leases_.end(), [&](const auto& other) {
      const OnNode& known = other.second;
      return other.first.second == key.second && other.first.first != key.first && known.tokens.empty() &&
             std::any_of(known.ends.begin(), known.ends.end(),
                         [&](const End& end) { return !end.at || *end.at >= time; });
    });
  };
  const auto lives_elsewhere = [&](const Key& key, int64_t time) {
    return leaves_elsewhere(key, time) || std::any_of(grants.begin(), grants.end(), [&](const auto& other) {
             if (other.first.second != key.second || other.first.first == key.first) return false;
             return std::any_of(other.second.begin(), other.second.end(), [&](const Grant& grant) {
               return grant.issued <= time && (!grant.end || *grant.end >= time);
             });
           });
  };
  for (const auto& [key, all] : grants) {
    for (size_t i = 1; i < all.size(); ++i) {
      if (all[i].boot != all[i - 1].boot && !lives_elsewhere(key, all[i].issued))
        found.push_back("lease " + key.second + " moved between poold processes of " + key.first);
    }
  }
}

std::vector<std::string> LeaseLedger::violations() const {
  std::vector<std::string> found = violations_;
  std::map<Key, std::vector<Grant>> grants;
  for (const auto& [key, known] : leases_) grants[key] = grants_of(known);
  find_double_grants(grants, found);
  find_sessions_without_lease(grants, found);
  find_new_processes(grants, found);
  return found;
}

}  // namespace gpupool::testing
