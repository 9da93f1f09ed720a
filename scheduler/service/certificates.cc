#include "scheduler/service/certificates.h"

#include <fcntl.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include "common/files/exposure.h"
#include "common/log/log.h"

namespace gpupool::scheduler {
namespace {

constexpr unsigned kLooksEverySeconds = 1;  // gRPC polls the in-memory copies this often
constexpr const char *kCertificate = "certificate", *kKey = "key", *kAuthorities = "authorities";

Error failed(const std::string& what) {
  return {ErrorCode::unavailable, "TLS: cannot " + what + ": " + std::generic_category().message(errno)};
}

}  // namespace

Certificates::~Certificates() {
  watch_.reset();
  for (const Version& version : versions_) remove(version);
  if (folder_.empty()) return;
  ::unlink((folder_ + "/current").c_str());
  ::rmdir(folder_.c_str());
}

void Certificates::remove(const Version& version) {
  for (const char* const name : {kCertificate, kKey, kAuthorities})
    ::unlink((version.folder + "/" + name).c_str());
  ::rmdir(version.folder.c_str());
  for (const int copy : version.copies) ::close(copy);
}

// Copies a file into a memfd, so that the key is not written to disk again.
Result<void> Certificates::copy(const std::string& from, const char* name, Version& version) {
  std::ifstream file(from, std::ios::binary);
  const std::string content{std::istreambuf_iterator<char>(file), {}};
  if (!file) return Error{ErrorCode::invalid, "cannot read '" + from + "'"};
  const int made = ::memfd_create(name, MFD_CLOEXEC);
  if (made < 0) return failed("make a copy of '" + from + "'");
  version.copies.push_back(made);
  if (::fchmod(made, 0600) != 0) return failed("set the permissions of the copy of '" + from + "'");
  if (::write(made, content.data(), content.size()) != static_cast<ssize_t>(content.size()))
    return failed("make a copy of '" + from + "'");
  // gRPC accepts a pair if the modification times, in whole seconds, did not change while it read both. Give
  // each version a distinct time, so that it never accepts parts of two versions.
  const timespec time{static_cast<time_t>(number_), 0};
  const timespec times[] = {time, time};
  ::futimens(made, times);
  if (::symlink(("/proc/self/fd/" + std::to_string(made)).c_str(), (version.folder + "/" + name).c_str()) !=
      0)
    return failed("make a link in " + version.folder);
  return {};
}

Result<void> Certificates::read() {
  if (const auto checked = files::check_secret(files_.key); !checked) return checked;
  if (folder_.empty()) {
    std::string folder = (std::filesystem::temp_directory_path() / "pool-scheduler-tls-XXXXXX").string();
    if (!::mkdtemp(folder.data())) return failed("make a folder " + folder);
    folder_ = folder;
  }
  Version version{.folder = folder_ + "/" + std::to_string(++number_), .copies = {}};
  if (::mkdir(version.folder.c_str(), 0700) != 0) return failed("make a folder " + version.folder);
  auto good = copy(files_.certificate, kCertificate, version);
  if (good) good = copy(files_.key, kKey, version);
  if (good && !files_.ca.empty()) good = copy(files_.ca, kAuthorities, version);
  if (good) good = publish(version);
  if (!good) remove(version);
  return good;
}

// Makes the version the current one if its certificate, key and CAs match.
Result<void> Certificates::publish(Version version) {
  const auto used =
      transport::tls::Context::server({.ca = files_.ca.empty() ? "" : version.folder + "/" + kAuthorities,
                                       .certificate = version.folder + "/" + kCertificate,
                                       .key = version.folder + "/" + kKey,
                                       .secret = {}});
  if (!used) {
    const auto as_given = transport::tls::Context::server(files_);  // for an error with the user's file names
    return as_given ? used.error() : as_given.error();
  }
  const std::string fresh = folder_ + "/next", current = folder_ + "/current";
  if (::symlink(version.folder.c_str(), fresh.c_str()) != 0 || ::rename(fresh.c_str(), current.c_str()) != 0)
    return failed("make a link in " + folder_);
  versions_.push_back(std::move(version));
  if (versions_.size() > 2) {
    remove(versions_.front());
    versions_.erase(versions_.begin());
  }
  return {};
}

std::shared_ptr<grpc::ServerCredentials> Certificates::credentials() const {
  using grpc::experimental::FileWatcherCertificateProvider;
  const std::string current = folder_ + "/current/", certificate = current + kCertificate,
                    key = current + kKey, authorities = current + kAuthorities;
  const auto provider = files_.ca.empty() ? std::make_shared<FileWatcherCertificateProvider>(
                                                key, certificate, kLooksEverySeconds)
                                          : std::make_shared<FileWatcherCertificateProvider>(
                                                key, certificate, authorities, kLooksEverySeconds);
  grpc::experimental::TlsServerCredentialsOptions options(provider);
  options.watch_identity_key_cert_pairs();
  if (!files_.ca.empty()) {
    options.watch_root_certs();
    options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  }
  return grpc::experimental::TlsServerCredentials(options);
}

void Certificates::watch(asio::io_context& context, std::chrono::milliseconds interval) {
  watch_.emplace(context, files_, interval,
                 [this](const transport::tls::CertificateWatch::Read&) { renew(); });
}

void Certificates::renew() {
  if (const auto good = read(); !good)
    return log::warning("certificate_not_renewed", {{"reason", good.error().message},
                                                    {"note", "the previous certificate stays in use"}});
  log::info("certificate_renewed", {{"file", files_.certificate}});
}

}  // namespace gpupool::scheduler
