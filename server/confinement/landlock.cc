#include "server/confinement/landlock.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <string_view>
#include <system_error>

#ifndef SYS_landlock_create_ruleset
#define SYS_landlock_create_ruleset 444
#define SYS_landlock_add_rule 445
#define SYS_landlock_restrict_self 446
#endif

namespace gpupool::worker::sandbox {
namespace {

// As in linux/landlock.h, which may be older at build time than the kernel at run time.
constexpr uint64_t kExecute = 1 << 0, kWriteFile = 1 << 1, kReadFile = 1 << 2, kReadFolder = 1 << 3,
                   kRemoveFolder = 1 << 4, kRemoveFile = 1 << 5, kMakeDevice = 1 << 6, kMakeFolder = 1 << 7,
                   kMakeFile = 1 << 8, kMakeSocket = 1 << 9, kMakeFifo = 1 << 10, kMakeBlockDevice = 1 << 11,
                   kMakeLink = 1 << 12, kMove = 1 << 13, kTruncate = 1 << 14, kControlDevice = 1 << 15;
constexpr uint64_t kBindTcp = 1 << 0, kConnectTcp = 1 << 1;
constexpr uint64_t kAbstractSockets = 1 << 0, kSignals = 1 << 1;
constexpr int kRuleOfPath = 1;       // LANDLOCK_RULE_PATH_BENEATH
constexpr unsigned kAskVersion = 1;  // LANDLOCK_CREATE_RULESET_VERSION
constexpr int kMoveVersion = 2, kTruncateVersion = 3, kControlDeviceVersion = 5;

struct RulesetAttributes {
  uint64_t files, tcp, scopes;
};
struct PathRule {
  uint64_t allowed;
  int32_t parent;
} __attribute__((packed));

constexpr uint64_t kRead = kReadFile | kReadFolder | kExecute;
constexpr uint64_t kChange = kWriteFile | kRemoveFile | kMakeFile | kTruncate | kControlDevice;
// rights that apply to files; the others are only valid for folders
constexpr uint64_t kOfFiles = kExecute | kWriteFile | kReadFile | kTruncate | kControlDevice;

// Files that drivers read: libraries, settings, and the kernel's information about devices.
constexpr const char* kReadable[] = {
    "/usr", "/lib", "/lib64", "/opt", "/run/nvidia", "/proc", "/sys",
    // dynamic loader
    "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/ld.so.preload",
    // names of hosts, users and groups (NSS), time zones
    "/etc/nsswitch.conf", "/etc/hosts", "/etc/host.conf", "/etc/resolv.conf", "/etc/gai.conf",
    "/etc/services", "/etc/protocols", "/etc/networks", "/etc/passwd", "/etc/group", "/etc/localtime",
    "/etc/timezone",
    // TLS: settings and CA certificates, but no keys
    "/etc/ssl/openssl.cnf", "/etc/ssl/certs", "/etc/ssl/cert.pem", "/etc/pki/tls/openssl.cnf",
    "/etc/pki/tls/certs", "/etc/pki/ca-trust/extracted", "/etc/crypto-policies",
    // drivers
    "/etc/nvidia", "/etc/OpenCL", "/etc/libibverbs.d", "/etc/rdma", "/etc/libnl", "/etc/libnl-3"};
constexpr const char* kWritable[] = {"/dev/shm", "/proc/self"};  // shared memory; a thread's name
// No terminals, virtual machines or devices of other programs, whatever their modes.
constexpr const char* kDevices[] = {"/dev/null",    "/dev/zero",       "/dev/full", "/dev/random",
                                    "/dev/urandom", "/dev/infiniband", "/dev/dri"};
// prefixes of names in /dev
constexpr std::string_view kGpuDevices[] = {"nvidia", "nvhost", "nvmap", "nvgpu", "dxg"};

Error failure(const std::string& what, int error) {
  return {ErrorCode::unavailable, what + ": " + std::generic_category().message(error)};
}

uint64_t known_file_rights(int version) {
  uint64_t rights = kMakeLink | (kMakeLink - 1);
  if (version >= kMoveVersion) rights |= kMove;
  if (version >= kTruncateVersion) rights |= kTruncate;
  if (version >= kControlDeviceVersion) rights |= kControlDevice;
  return rights;
}

Result<void> allow(int ruleset, const std::string& path, uint64_t rights) {
  const int file = ::open(path.c_str(), O_PATH | O_CLOEXEC);
  if (file < 0) return {};  // a missing file needs no rule
  struct stat status {};
  if (::fstat(file, &status) == 0 && !S_ISDIR(status.st_mode)) rights &= kOfFiles;
  const PathRule rule{rights, file};
  const long added = ::syscall(SYS_landlock_add_rule, ruleset, kRuleOfPath, &rule, 0);
  const int error = errno;
  ::close(file);
  if (added != 0) return failure("cannot add a Landlock rule for '" + path + "'", error);
  return {};
}

std::vector<std::string> devices() {
  std::vector<std::string> found(std::begin(kDevices), std::end(kDevices));
  std::error_code status;
  for (std::filesystem::directory_iterator entry("/dev", status);
       !status && entry != std::filesystem::directory_iterator(); entry.increment(status)) {
    const std::string name = entry->path().filename();
    const auto begins_so = [&](std::string_view prefix) { return name.starts_with(prefix); };
    if (std::any_of(std::begin(kGpuDevices), std::end(kGpuDevices), begins_so))
      found.push_back(entry->path());
  }
  return found;
}

Result<void> add_rules(int ruleset, uint64_t known, const std::vector<std::string>& readable,
                       const std::string& cache) {
  Result<void> added;
  for (const char* const path : kReadable) {
    if (added) added = allow(ruleset, path, kRead);
  }
  for (const std::string& path : readable) {
    if (added) added = allow(ruleset, path, kRead);
  }
  for (const char* const path : kWritable) {
    if (added) added = allow(ruleset, path, (kRead | kChange) & known);
  }
  for (const std::string& path : devices()) {
    if (added)
      added =
          allow(ruleset, path, (kReadFile | kReadFolder | kWriteFile | kTruncate | kControlDevice) & known);
  }
  if (added && !cache.empty())
    added = allow(ruleset, cache, (kRead | kChange | kMakeFolder | kRemoveFolder) & known);
  return added;
}

bool lies_below(const std::filesystem::path& path, const std::filesystem::path& folder) {
  return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first == folder.end();
}

}  // namespace

int landlock_version() {
  const long version = ::syscall(SYS_landlock_create_ruleset, nullptr, 0, kAskVersion);
  return version > 0 ? static_cast<int>(version) : 0;
}

bool is_readable(const std::string& path, const std::vector<std::string>& more) {
  if (landlock_version() < kLandlockFiles) return true;
  std::error_code status;
  const auto real = [&status](const std::string& any) { return std::filesystem::canonical(any, status); };
  const std::filesystem::path file = real(path);
  if (status) return false;
  const auto holds = [&](const std::string& folder) {
    const auto allowed = real(folder);
    return !status && lies_below(file, allowed);
  };
  return std::any_of(std::begin(kReadable), std::end(kReadable), holds) ||
         std::any_of(std::begin(kWritable), std::end(kWritable), holds) ||
         std::any_of(more.begin(), more.end(), holds);
}

Result<void> restrict_files(const std::vector<std::string>& readable, const std::string& cache) {
  const int version = landlock_version();
  if (version < kLandlockFiles) return {};
  const uint64_t known = known_file_rights(version);
  RulesetAttributes attributes{.files = known, .tcp = 0, .scopes = 0};
  size_t size = sizeof attributes.files;  // older kernels reject structures longer than theirs
  if (version >= kLandlockTcp) {
    attributes.tcp = kBindTcp | kConnectTcp;
    size += sizeof attributes.tcp;
  }
  if (version >= kLandlockScopes) {
    attributes.scopes = kAbstractSockets | kSignals;
    size += sizeof attributes.scopes;
  }
  const int ruleset = static_cast<int>(::syscall(SYS_landlock_create_ruleset, &attributes, size, 0));
  if (ruleset < 0) return failure("cannot create a Landlock ruleset", errno);
  const Result<void> added = add_rules(ruleset, known, readable, cache);
  const bool restricted = added && ::syscall(SYS_landlock_restrict_self, ruleset, 0) == 0;
  const int error = errno;
  ::close(ruleset);
  if (!added) return added;
  if (!restricted) return failure("cannot restrict a worker's files", error);
  return {};
}

}  // namespace gpupool::worker::sandbox
