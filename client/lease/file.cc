#include "client/lease/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace gpupool::client {
namespace {

constexpr const char* kFirstLine = "gpupool lease 1";
constexpr size_t kMostBytes = 1u << 20;

Error failed(const std::string& path, const std::string& why) { return {ErrorCode::unavailable, "the lease file " + path + " " + why}; }

Result<std::string> contents(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return failed(path, std::string("cannot be read: ") + std::strerror(errno) + "; is pool-lease still running?");
  std::string text;
  struct stat about {};
  const bool mine = ::fstat(file, &about) == 0 && (about.st_uid == ::geteuid() || about.st_uid == 0);
  char part[4096];
  for (ssize_t length = 1; mine && text.size() <= kMostBytes && (length = ::read(file, part, sizeof part)) > 0;) {
    text.append(part, static_cast<size_t>(length));
  }
  ::close(file);
  if (!mine) return failed(path, "is another user's");
  if (text.size() > kMostBytes) return failed(path, "is too large");
  return text;
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
  std::vector<LeasedServer> servers;
  bool first = true;
  for (size_t at = 0; at < text->size();) {
    const size_t end = std::min(text->find('\n', at), text->size());
    const std::string line = text->substr(at, end - at);
    at = end + 1;
    if (std::exchange(first, false)) {
      if (line != kFirstLine) return failed(path, "is no lease file of this version");
      continue;
    }
    const size_t blank = line.find(' ');
    auto endpoint = transport::Endpoint::parse(line.substr(0, blank));
    if (!endpoint || blank == std::string::npos) return failed(path, "has a line that is no server");
    servers.push_back({std::move(*endpoint), line.substr(blank + 1)});
  }
  if (first) return failed(path, "is empty");
  if (servers.empty()) return failed(path, "names no server: the lease is over");
  return servers;
}

Result<std::vector<LeasedServer>> named_servers(const std::string& text) {
  constexpr std::string_view kLease = "lease:";
  if (text.starts_with(kLease)) return read_lease_file(text.substr(kLease.size()));
  auto endpoints = transport::Endpoint::parse_list(text);
  if (!endpoints && !transport::Endpoint::has_transport(text)) {
    return Error{ErrorCode::invalid, endpoints.error().message + ", or for a pool as pool://SCHEDULER:PORT"};
  }
  if (!endpoints) return endpoints.error();
  std::vector<LeasedServer> servers;
  for (auto& endpoint : *endpoints) servers.push_back({std::move(endpoint), ""});
  return servers;
}

Result<void> write_lease_file(const std::string& path, const std::vector<LeasedServer>& servers) {
  std::string text = std::string(kFirstLine) + "\n";
  for (const LeasedServer& server : servers) text += server.endpoint.text() + " " + server.token + "\n";
  const std::string fresh = path + ".new";
  const int file = ::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  const bool written = file >= 0 && write_all(file, text);
  const int error = errno;
  if (file >= 0) ::close(file);
  if (!written || std::rename(fresh.c_str(), path.c_str()) != 0) return failed(path, std::string("cannot be written: ") + std::strerror(written ? errno : error));
  return {};
}

}  // namespace gpupool::client
