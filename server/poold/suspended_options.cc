#include "server/poold/suspended_options.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <iterator>
#include <system_error>

#include "common/files/exposure.h"

namespace gpupool::server {
namespace {

Error wrong(const std::string& option, const std::string& why) {
  return {ErrorCode::invalid, option + ": " + why};
}

Result<suspension::Secret> read_key(const std::string& path) {
  const std::string option = "--suspended-key " + path;
  if (const auto checked = files::check_secret(path); !checked) return wrong(option, checked.error().message);
  std::ifstream file(path, std::ios::binary);
  if (!file) return wrong(option, "cannot be read");
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  auto secret = suspension::secret_of(bytes);
  if (!secret) return wrong(option, secret.error().message);
  return secret;
}

// Files of the folder hold keys of sessions, and others must not put files there.
Result<void> check_folder(const std::string& path) {
  const std::string option = "--suspended-folder " + path;
  struct stat about {};
  if (::stat(path.c_str(), &about) != 0) return wrong(option, std::generic_category().message(errno));
  if (!S_ISDIR(about.st_mode)) return wrong(option, "is not a folder");
  if (::access(path.c_str(), W_OK | X_OK) != 0) return wrong(option, std::generic_category().message(errno));
  if (about.st_uid != 0 && about.st_uid != ::geteuid())
    return wrong(option,
                 "belongs to another user, who can replace its files; give it to poold's user or root");
  const auto others = files::access_of_others(about);
  if (others.writable || others.readable) return wrong(option, "other users can open it; chmod 700 " + path);
  return {};
}

}  // namespace

Result<SuspendedFiles::Settings> suspended_files(const ServerOptions& options) {
  SuspendedFiles::Settings settings{.memory_bytes = uint64_t{options.host_memory_for_suspended_mib} << 20,
                                    .folder = options.suspended_folder,
                                    .disk_bytes = uint64_t{options.suspended_disk_mib} << 20,
                                    .secret = std::nullopt,
                                    .plaintext = options.suspended_plaintext};
  if (!settings.folder.empty()) {
    if (auto checked = check_folder(settings.folder); !checked) return checked.error();
  }
  if (options.suspended_key.empty()) return settings;
  auto key = read_key(options.suspended_key);
  if (!key) return key.error();
  settings.secret = *key;
  return settings;
}

}  // namespace gpupool::server
