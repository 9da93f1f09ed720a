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
  const OnNode key{lease.node(), lease::hexadecimal(lease.id())};
  const auto [found, is_new] = grants_.try_emplace(key);
  Grant& grant = found->second;
  if (is_new || lease.issued_ms() < grant.issued) grant.issued = lease.issued_ms();
  if (!is_new && grant.boot != lease::hexadecimal(lease.boot()))
    violations_.push_back("lease " + key.second + " moved between poold processes of " + key.first);
  grant.boot = lease::hexadecimal(lease.boot());
  if (is_new) grant.shares.assign(lease.shares().begin(), lease.shares().end());
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
    if (ended_.contains({node, lease}))
      violations_.push_back("a session of lease " + lease + " began on " + node +
                            " after the end of the lease");
    else
      over_.erase({node, lease});  // poold had only forgotten it because it had no sessions
    running_[{node, static_cast<uint64_t>(number(line, "session"))}] = sessions_.size();
    sessions_.push_back({node, lease, number(line, "worker"), at, {}});
  } else if (event == "session_ended" && !lease.empty()) {
    const auto found = running_.find({node, static_cast<uint64_t>(number(line, "session"))});
    if (found == running_.end()) return;
    sessions_[found->second].ended = at;
    running_.erase(found);
  } else if (event == "lease_ends") {
    const bool in_use = std::any_of(running_.begin(), running_.end(), [&](const auto& one) {
      return sessions_[one.second].node == node && sessions_[one.second].lease == lease;
    });
    ordered_.insert({node, lease});
    if (!in_use) over_.insert({{node, lease}, at});
  } else if (event == "lease_gone") {
    for (const auto& [key, index] : running_) {
      if (sessions_[index].node == node && sessions_[index].lease == lease)
        violations_.push_back("lease " + lease + " was reported gone from " + node +
                              " while a session of it runs");
    }
    if (ordered_.contains({node, lease})) ended_.insert({node, lease});
    over_[{node, lease}] = at;
  }
}

void LeaseLedger::poold_gone(const std::string& node, int64_t at) {
  std::erase_if(ordered_, [&](const OnNode& key) { return key.first == node; });
  for (auto one = running_.begin(); one != running_.end();) {
    if (one->first.first != node) {
      ++one;
      continue;
    }
    sessions_[one->second].ended = at;
    one = running_.erase(one);
  }
  const auto boot = boot_.find(node);
  if (boot == boot_.end()) return;
  runs_.at(boot->second).gone = at;
  boot_.erase(boot);
}

std::optional<int64_t> LeaseLedger::end_of(const OnNode& key, const Grant& grant) const {
  std::optional<int64_t> end;
  if (const auto over = over_.find(key); over != over_.end()) end = over->second;
  const auto run = runs_.find(grant.boot);
  // A poold that ended before it logged its boot id has served no sessions.
  const std::optional<int64_t> gone = run == runs_.end() ? grant.issued : run->second.gone;
  if (gone && (!end || *gone < *end)) end = gone;
  return end;
}

std::vector<std::string> LeaseLedger::violations() const {
  std::vector<std::string> found = violations_;
  struct Change {
    int64_t at;
    bool begins;
    const OnNode* lease;
    const lease::Share* share;
    bool operator<(const Change& other) const {
      return std::tie(at, begins) < std::tie(other.at, other.begins);
    }
  };
  std::map<std::string, std::vector<Change>> by_gpu;
  for (const auto& [key, grant] : grants_) {
    const std::optional<int64_t> end = end_of(key, grant);
    if (end && *end <= grant.issued) continue;
    for (const lease::Share& share : grant.shares) {
      by_gpu[share.gpu_uuid()].push_back({grant.issued, true, &key, &share});
      // The scheduler stamps tokens with the start of its turn, so the end of the previous lease, which
      // allows the grant, may be logged slightly later.
      if (end)
        by_gpu[share.gpu_uuid()].push_back(
            {std::max(grant.issued, *end - kSchedulersTurn), false, &key, &share});
    }
  }
  for (auto& [uuid, changes] : by_gpu) {
    const auto gpu = memory_.find(uuid);
    if (gpu == memory_.end()) {
      found.push_back("lease of unknown GPU " + uuid);
      continue;
    }
    std::sort(changes.begin(), changes.end());  // at equal times ends come before beginnings
    uint64_t milli = 0, bytes = 0;
    std::set<std::string> live;
    for (const Change& change : changes) {
      const uint64_t its_bytes =
          change.share->memory_bytes() == 0 ? gpu->second : change.share->memory_bytes();
      if (!change.begins) {
        milli -= change.share->compute_milli(), bytes -= its_bytes;
        live.erase(change.lease->second);
        continue;
      }
      milli += change.share->compute_milli(), bytes += its_bytes;
      live.insert(change.lease->second);
      if (milli <= kWhole && bytes <= gpu->second) continue;
      std::string names;
      for (const std::string& lease : live) names += " " + lease.substr(0, 8);
      found.push_back("GPU " + uuid + " of " + change.lease->first + " was granted twice at " +
                      std::to_string(change.at) + ": " + std::to_string(milli) + " thousandths and " +
                      std::to_string(bytes) + " of " + std::to_string(gpu->second) + " bytes, to" + names);
    }
  }
  for (const Session& session : sessions_) {
    const OnNode key{session.node, session.lease};
    const auto grant = grants_.find(key);
    if (grant == grants_.end()) {
      found.push_back("a session ran on " + session.node + " with lease " + session.lease +
                      ", which was never granted");
      continue;
    }
    const auto end = end_of(key, grant->second);
    if (end && (session.started > *end || !session.ended || *session.ended > *end)) {
      found.push_back("a session of lease " + session.lease + " ran on " + session.node +
                      " after the end of the lease");
    }
  }
  return found;
}

}  // namespace gpupool::testing
