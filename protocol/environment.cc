#include "protocol/environment.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "common/files/exposure.h"

namespace gpupool {
namespace {

constexpr size_t kLongestToken = 4096;

// Returns the first line without surrounding blanks.
std::string only_line(const std::string& text) {
  constexpr const char* kBlanks = " \t\r\n";
  const std::string line = text.substr(0, text.find('\n'));
  const size_t first = line.find_first_not_of(kBlanks);
  return first == std::string::npos ? "" : line.substr(first, line.find_last_not_of(kBlanks) + 1 - first);
}

std::string token_from_file(const std::string& path, const ReportMistake& report) {
  const std::string name = "GPUPOOL_TOKEN_FILE=" + path;
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  char text[kLongestToken];
  const ssize_t length = file >= 0 ? ::read(file, text, sizeof text) : -1;
  if (length < 0) report(name + ": cannot be read: " + std::generic_category().message(errno));
  struct stat about {};
  const files::OthersAccess exposure =
      length > 0 && ::fstat(file, &about) == 0 ? files::access_of_others(about) : files::OthersAccess{};
  if (file >= 0) ::close(file);
  if (exposure.writable) {
    report(name + ": not used, because it is writable by other users; use chmod 600");
    return "";
  }
  if (exposure.readable) report(name + ": readable by other users; use chmod 600");
  const std::string token = length > 0 ? only_line(std::string(text, static_cast<size_t>(length))) : "";
  if (length >= 0 && token.empty())
    report(name + ": no token in its first line, so none is sent; write the token there");
  return token;
}

}  // namespace

std::string environment_text(const char* variable) {
  const char* const text = std::getenv(variable);
  return text ? text : "";
}

std::string token_from_environment(const ReportMistake& report) {
  const std::string file = environment_text("GPUPOOL_TOKEN_FILE");
  return file.empty() ? only_line(environment_text("GPUPOOL_TOKEN")) : token_from_file(file, report);
}

transport::TlsOptions tls_from_environment() {
  return {.ca = environment_text("GPUPOOL_TLS_CA"),
          .certificate = environment_text("GPUPOOL_TLS_CERT"),
          .key = environment_text("GPUPOOL_TLS_KEY"),
          .secret = {}};
}

}  // namespace gpupool
