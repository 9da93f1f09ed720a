#include "client/lease/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <string_view>
#include <system_error>
#include <utility>

#include "common/descriptor.h"

namespace gpupool::client {
namespace {

constexpr const char* kFirstLine = "gpupool lease 1";
constexpr std::string_view kNext = "> ";
constexpr size_t kMostBytes = 1u << 20;

Error failed(const std::string& path, const std::string& why) {
  return {ErrorCode::unavailable, "the lease file " + path + " " + why};
}

struct FileLocation {
  Descriptor folder;
  std::string name;  // of the file in the folder
};

// Returns why other users could have changed the file or folder; empty: only root and this user can.
std::string distrust_reason(const struct stat& about) {
  if (about.st_uid != ::geteuid() && about.st_uid != 0) return "is owned by another user";
  if ((about.st_mode & (S_IWGRP | S_IWOTH)) != 0) return "is writable by other users";
  return "";
}

// Opens the file's folder. Refuses a folder that other users can write, because they could replace the file.
Result<FileLocation> open_folder(const std::string& path) {
  FileLocation location{
      Descriptor(::open(lease_folder(path).c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)),
      path.substr(path.rfind('/') + 1)};
  struct stat about {};
  if (location.folder.number() < 0 || ::fstat(location.folder.number(), &about) != 0) {
    return failed(path, std::string("cannot be found: ") + std::generic_category().message(errno) +
                            "; is pool-lease still running?");
  }
  if (const std::string why = distrust_reason(about); !why.empty()) {
    return failed(path,
                  "is not used: its folder " + why + "; the folder must be owned by you, with mode 0700");
  }
  return location;
}

Result<std::string> contents(const std::string& path) {
  const auto location = open_folder(path);
  if (!location) return location.error();
  const Descriptor file(::openat(location->folder.number(), location->name.c_str(),
                                 O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  struct stat about {};
  if (file.number() < 0 || ::fstat(file.number(), &about) != 0) {
    return failed(path, std::string("cannot be read: ") + std::generic_category().message(errno) +
                            "; is pool-lease still running?");
  }
  if (!S_ISREG(about.st_mode)) return failed(path, "is not a regular file");
  if (const std::string why = distrust_reason(about); !why.empty())
    return failed(path, "is not used: it " + why);
  std::string text;
  char part[4096];
  for (ssize_t length = 1;
       text.size() <= kMostBytes && (length = ::read(file.number(), part, sizeof part)) > 0;) {
    text.append(part, static_cast<size_t>(length));
  }
  if (text.size() > kMostBytes) return failed(path, "is too large");
  return text;
}

// A token with a line break could add servers to the file.
bool is_token(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c <= '~'; });
}

bool write_all(int file, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t written = ::write(file, text.data() + done, text.size() - done);
    if (written < 0) return false;
    done += static_cast<size_t>(written);
  }
  return true;
}

}  // namespace

Result<std::vector<LeasedServer>> read_lease_file(const std::string& path) {
  const auto text = contents(path);
  if (!text) return text.error();
  return parse_lease(path, *text);
}

Result<std::vector<LeasedServer>> parse_lease(const std::string& path, const std::string& text) {
  std::vector<LeasedServer> servers;
  bool first = true;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string line = text.substr(at, end - at);
    at = end + 1;
    if (std::exchange(first, false)) {
      if (line != kFirstLine) return failed(path, "is not a lease file of this version");
      continue;
    }
    const bool is_next = line.starts_with(kNext);
    if (is_next) line.erase(0, kNext.size());
    const size_t blank = line.find(' ');
    auto endpoint = transport::Endpoint::parse(line.substr(0, blank));
    if (!endpoint || blank == std::string::npos) return failed(path, "has an invalid line");
    if (is_next && (servers.empty() || !servers.back().next.empty()))
      return failed(path, "has an invalid line");
    (is_next ? servers.back().next : servers).push_back({std::move(*endpoint), line.substr(blank + 1)});
  }
  if (first) return failed(path, "is empty");
  if (servers.empty()) return failed(path, "lists no servers: the lease has ended");
  return servers;
}

Result<std::vector<LeasedServer>> named_servers(const std::string& text) {
  if (text.starts_with(kLeaseScheme)) return read_lease_file(text.substr(kLeaseScheme.size()));
  auto endpoints = transport::Endpoint::parse_list(text);
  if (!endpoints && !transport::Endpoint::has_transport(text)) {
    return Error{ErrorCode::invalid, endpoints.error().message + ", or for a pool as pool://SCHEDULER:PORT"};
  }
  if (!endpoints) return endpoints.error();
  std::vector<LeasedServer> servers;
  for (auto& endpoint : *endpoints) servers.push_back({std::move(endpoint), ""});
  return servers;
}

Result<std::string> make_lease_folder() {
  const char* const runtime = std::getenv("XDG_RUNTIME_DIR");
  for (const char* const parent : {runtime ? runtime : "", "/tmp"}) {
    std::string folder = std::string(parent) + "/gpupool-lease-XXXXXX";
    if (*parent != '\0' && ::mkdtemp(folder.data())) return folder + "/servers";
  }
  return Error{ErrorCode::unavailable,
               std::string("cannot create a folder in /tmp: ") + std::generic_category().message(errno)};
}

std::string lease_folder(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, std::max<size_t>(slash, 1));
}

Result<void> write_lease_file(const std::string& path, const std::vector<LeasedServer>& servers,
                              mode_t mode) {
  std::string text = std::string(kFirstLine) + "\n";
  const LeasedServer* wrong = nullptr;
  const auto add = [&](std::string_view before, const LeasedServer& server) {
    if (!is_token(server.token)) wrong = &server;
    text += std::string(before) + server.endpoint.text() + " " + server.token + "\n";
  };
  for (const LeasedServer& server : servers) {
    add("", server);
    for (const LeasedServer& next : server.next) add(kNext, next);
  }
  if (wrong)
    return failed(path, "cannot be written: the token for " + wrong->endpoint.text() +
                            " contains spaces or control characters");
  const auto location = open_folder(path);
  if (!location) return location.error();
  const int folder = location->folder.number();
  const std::string fresh = location->name + ".new";
  ::unlinkat(folder, fresh.c_str(), 0);  // left by an interrupted write
  const Descriptor file(
      ::openat(folder, fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (file.number() >= 0 && write_all(file.number(), text) && ::fchmod(file.number(), mode) == 0 &&
      ::renameat(folder, fresh.c_str(), folder, location->name.c_str()) == 0)
    return {};
  const std::string why = std::generic_category().message(errno);
  ::unlinkat(folder, fresh.c_str(), 0);
  return failed(path, "cannot be written: " + why);
}

void remove_lease_file(const std::string& path) {
  if (const auto location = open_folder(path))
    ::unlinkat(location->folder.number(), location->name.c_str(), 0);
  ::rmdir(path.substr(0, path.rfind('/')).c_str());
}

}  // namespace gpupool::client
