#include "client/kubernetes/claim_store.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "client/cdi/file.h"

namespace gpupool::kubernetes {
namespace {

namespace fs = std::filesystem;

Result<void> make_folder(const fs::path& folder, mode_t mode) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error)
    return Error{ErrorCode::unavailable,
                 "cannot create the folder " + folder.string() + ": " + error.message()};
  if (::chmod(folder.c_str(), mode) != 0) {
    return Error{ErrorCode::unavailable,
                 "cannot set the mode of " + folder.string() + ": " + std::generic_category().message(errno)};
  }
  return {};
}

Json json_of(const StoredClaim& claim) {
  Json devices = Json::array();
  for (const AllocatedDevice& one : claim.devices)
    devices.push_back({{"request", one.request}, {"pool", one.pool}, {"device", one.device}});
  return {{"namespace", claim.name.space},
          {"name", claim.name.name},
          {"uid", claim.name.uid},
          {"devices", devices},
          {"gpus", claim.lease.gpus},
          {"compute_milli", claim.lease.compute_milli},
          {"memory_bytes", claim.lease.memory_bytes},
          {"models", claim.lease.models},
          {"terms", claim.lease.terms},
          {"token", claim.token},
          {"own_token", claim.own_token},
          {"prepared", claim.prepared}};
}

// Throws Json::exception.
StoredClaim claim_of(const Json& json) {
  StoredClaim claim;
  claim.name = {json.at("namespace"), json.at("name"), json.at("uid")};
  for (const Json& one : json.at("devices"))
    claim.devices.push_back({one.at("request"), one.at("pool"), one.at("device")});
  claim.lease.gpus = json.at("gpus");
  claim.lease.compute_milli = json.at("compute_milli");
  claim.lease.memory_bytes = json.at("memory_bytes");
  claim.lease.models = json.at("models").get<std::vector<std::string>>();
  claim.lease.terms = json.at("terms");
  claim.token = json.at("token");
  claim.own_token = json.at("own_token");
  claim.prepared = json.at("prepared");
  return claim;
}

}  // namespace

bool is_uid(const std::string& text) {
  return !text.empty() && text.size() <= 64 && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-';
  });
}

Result<ClaimStore> ClaimStore::open(const std::string& folder) {
  if (const auto made = make_folder(folder, 0700); !made) return made.error();
  ClaimStore store(folder + "/claims");
  if (const auto made = make_folder(store.folder_, 0700); !made) return made.error();
  return store;
}

std::vector<StoredClaim> ClaimStore::read_all(std::vector<std::string>& report) const {
  std::vector<StoredClaim> claims;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_, error)) {
    const auto text = cdi::read_file(entry.path() / "claim.json");
    if (!text) {
      report.push_back(text.error().message);
      continue;
    }
    // A folder without the file is left by a plugin that was killed before it requested anything.
    if (!text->has_value()) {
      fs::remove_all(entry.path(), error);
      continue;
    }
    try {
      StoredClaim claim = claim_of(Json::parse(**text));
      if (claim.name.uid == entry.path().filename()) claims.push_back(std::move(claim));
    } catch (const Json::exception& wrong) {
      report.push_back((entry.path() / "claim.json").string() + ": " + wrong.what());
    }
  }
  return claims;
}

Result<void> ClaimStore::put(const StoredClaim& claim) const {
  const fs::path folder = fs::path(folder_) / claim.name.uid;
  if (const auto made = make_folder(folder, 0700); !made) return made.error();
  if (const auto made = make_folder(folder / "lease", 0755); !made) return made.error();
  const std::string text = json_of(claim).dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  return cdi::update_file(
      folder / "claim.json", false,
      [&](const auto&) -> Result<std::optional<std::string>> { return std::optional(text); });
}

Result<void> ClaimStore::remove(const std::string& uid) const {
  // The file first: without it the rest is rubbish, which read_all() removes.
  std::error_code error;
  fs::remove(fs::path(folder_) / uid / "claim.json", error);
  if (!error) fs::remove_all(fs::path(folder_) / uid, error);
  if (!error) return {};
  return Error{ErrorCode::unavailable,
               "cannot remove " + (fs::path(folder_) / uid).string() + ": " + error.message()};
}

std::string ClaimStore::lease_folder(const std::string& uid) const {
  return folder_ + "/" + uid + "/lease";
}

}  // namespace gpupool::kubernetes
