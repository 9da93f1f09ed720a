// A file to which lines of JSON are appended, for those who want to know afterwards who did what. One thread. What cannot be written is
// logged and does not stop the work.
#pragma once
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "protocol/wire/result.h"
#include "server/log/log.h"

namespace gpupool::server {

class AuditFile {
 public:
  explicit AuditFile(std::string path) : path_(std::move(path)) {}  // empty: none
  ~AuditFile();
  AuditFile(const AuditFile&) = delete;
  AuditFile& operator=(const AuditFile&) = delete;

  // Again after a rotation; on failure the old file stays in use.
  Result<void> open();
  void append(std::string_view event, std::span<const log::Field> fields);
  void append(std::string_view event, std::initializer_list<log::Field> fields) { append(event, std::span(fields.begin(), fields.size())); }

 private:
  const std::string path_;
  int descriptor_ = -1;
};

}  // namespace gpupool::server
