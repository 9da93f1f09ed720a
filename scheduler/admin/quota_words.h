// Parser for the KEY=VALUE words of `pool-admin quota set` for a poold, by the table
// protocol/control/quota.def. Keys and units are those of poold's configuration file. Pure.
#pragma once
#include <string>
#include <vector>

#include "common/result.h"
#include "protocol/control/admin.pb.h"

namespace gpupool::admin {

// Returns a quota in which only the given fields are set. ErrorCode::invalid says which word is wrong.
Result<Quota> read_quota_words(const std::vector<std::string>& words);
// Lists the keys with examples of their values, in several lines without a newline at the end.
std::string quota_keys_help();
// The same for any keys. Consecutive keys with the same example share it; empty: the value needs none.
struct KeyExample {
  std::string word;
  std::string example;
};
std::string help_on_keys(const std::vector<KeyExample>& keys);

}  // namespace gpupool::admin
