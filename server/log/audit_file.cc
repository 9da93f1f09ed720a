#include "server/log/audit_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace gpupool::server {

AuditFile::~AuditFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Result<void> AuditFile::open() {
  if (path_.empty()) return {};
  const int opened = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY, 0600);
  if (opened < 0) {
    return Error{ErrorCode::unavailable, "cannot open the audit file '" + path_ + "': " + std::generic_category().message(errno)};
  }
  if (const int old = std::exchange(descriptor_, opened); old >= 0) ::close(old);
  return {};
}

void AuditFile::append(std::string_view event, std::span<const log::Field> fields) {
  if (descriptor_ < 0) return;
  const std::string line = log::json_line(event, fields);
  if (::write(descriptor_, line.data(), line.size()) == static_cast<ssize_t>(line.size())) return;
  log::error("audit_failed", {{"file", path_}, {"reason", std::generic_category().message(errno)}});
}

}  // namespace gpupool::server
