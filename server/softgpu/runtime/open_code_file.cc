#include "server/softgpu/runtime/open_code_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>

namespace gpupool::softgpu {
namespace {

constexpr const char* kFileName = "code-1";  // 1: version of the file's format

OpenedCodeFile failed(const std::string& what, int error) {
  return {nullptr, what + ": " + std::generic_category().message(error)};
}

std::string default_folder() {
  if (const char* const cache = ::secure_getenv("XDG_CACHE_HOME"); cache != nullptr && cache[0] == '/')
    return std::string(cache) + "/gpupool/softgpu";
  if (const char* const home = ::secure_getenv("HOME"); home != nullptr && home[0] == '/')
    return std::string(home) + "/.cache/gpupool/softgpu";
  return {};
}

std::string not_examined(int error) {
  return "cannot be examined (fstat): " + std::generic_category().message(error);
}

// Returns why other users could write there; empty if they cannot.
std::string why_accessible_to_others(const struct stat& status) {
  if (status.st_uid != ::geteuid()) return "belongs to another user";
  if ((status.st_mode & 077) != 0)
    return std::string("is accessible to other users; set its mode to ") +
           (S_ISDIR(status.st_mode) ? "0700" : "0600");
  return {};
}

OpenedCodeFile open_in_folder(const std::string& folder, uint64_t limit) {
  const std::filesystem::path path(folder);
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return failed("cannot create " + folder, errno);
  const int directory = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (directory < 0) return failed("cannot open " + folder, errno);
  struct stat status {};
  std::string problem =
      ::fstat(directory, &status) == 0 ? why_accessible_to_others(status) : not_examined(errno);
  const int file =
      problem.empty() ? ::openat(directory, kFileName, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600) : -1;
  const int failure = errno;
  ::close(directory);
  if (!problem.empty()) return {nullptr, folder + " " + problem};
  if (file < 0) return failed("cannot open " + folder + '/' + kFileName, failure);
  problem = ::fstat(file, &status) != 0 ? not_examined(errno)
            : !S_ISREG(status.st_mode)  ? "is not a regular file"
            : status.st_nlink != 1      ? "has more than one hard link"
                                        : why_accessible_to_others(status);
  if (!problem.empty()) {
    ::close(file);
    return {nullptr, folder + '/' + kFileName + ' ' + problem};
  }
  return {std::make_shared<CodeFile>(file, limit), {}};
}

// Opens a memory file of fixed size that the parent process has made, by its descriptor.
OpenedCodeFile open_inherited(std::string_view number) {
  int given = -1;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), given);
  if (error != std::errc() || end != number.data() + number.size() || given < 0)
    return {nullptr, "fd:N: N must be the number of an open descriptor"};
  const int file = ::fcntl(given, F_DUPFD_CLOEXEC, 0);
  struct stat status {};
  if (file < 0 || ::fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) {
    if (file >= 0) ::close(file);
    return {};  // the descriptor is reserved, but no file was put there
  }
  return {std::make_shared<CodeFile>(file, static_cast<uint64_t>(status.st_size)), {}};
}

}  // namespace

OpenedCodeFile open_code_file(const std::string& where, uint64_t limit) {
  if (where == "off") return {};
  if (where.starts_with("fd:")) return open_inherited(std::string_view(where).substr(3));
  const std::string folder = where.empty() ? default_folder() : where;
  if (folder.empty()) return {nullptr, "neither XDG_CACHE_HOME nor HOME is an absolute path"};
  if (folder[0] != '/') return {nullptr, folder + " is not an absolute path"};
  return open_in_folder(folder, limit);
}

}  // namespace gpupool::softgpu
