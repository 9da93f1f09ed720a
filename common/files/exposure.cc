#include "common/files/exposure.h"

#include <unistd.h>

#include <algorithm>
#include <vector>

namespace gpupool::files {
namespace {

bool is_own_group(gid_t group) {
  if (group == ::getegid()) return true;
  std::vector<gid_t> groups(static_cast<size_t>(std::max(0, ::getgroups(0, nullptr))));
  const int count = ::getgroups(static_cast<int>(groups.size()), groups.data());
  const auto end = groups.begin() + std::max(0, count);
  return std::find(groups.begin(), end, group) != end;
}

Error refused(const std::string& path, const std::string& why) {
  return {ErrorCode::invalid, "refusing to use '" + path + "': " + why};
}

Result<void> check_writers(const struct stat& about, const std::string& path) {
  if (!access_of_others(about).writable) return {};
  return refused(path,
                 "other users can write it; run chmod go-w, and check that its content was not changed");
}

Result<void> check_secret(const struct stat& about, const std::string& path) {
  if (auto written = check_writers(about, path); !written) return written;
  if (!access_of_others(about).readable) return {};
  return refused(path,
                 "other users can read it; run chmod 600, or change its owner to root and its group to one "
                 "of this process "
                 "and run chmod 640");
}

}  // namespace

OthersAccess access_of_others(const struct stat& about) {
  if (S_ISCHR(about.st_mode)) return {};
  const bool group_may_read = about.st_uid == 0 && (about.st_gid == 0 || is_own_group(about.st_gid));
  const mode_t read = group_may_read ? S_IROTH : S_IRGRP | S_IROTH;
  return {.readable = (about.st_mode & read) != 0, .writable = (about.st_mode & (S_IWGRP | S_IWOTH)) != 0};
}

Result<void> check_secret(const std::string& path) {
  struct stat about {};
  if (::stat(path.c_str(), &about) != 0) return {};
  return check_secret(about, path);
}

Result<void> check_secret(int file, const std::string& path) {
  struct stat about {};
  if (::fstat(file, &about) != 0) return {};
  return check_secret(about, path);
}

Result<void> check_not_writable(const std::string& path) {
  struct stat about {};
  if (::stat(path.c_str(), &about) != 0) return {};
  return check_writers(about, path);
}

}  // namespace gpupool::files
