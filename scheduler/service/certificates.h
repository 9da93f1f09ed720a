// The certificate, private key and client CAs with which pool-scheduler serves TLS, and their renewal while
// it runs. The engine's thread.
//
// gRPC polls the files that it is given and uses whatever they contain: with half of a renewed pair every
// handshake would fail, and a missing file could end the process. Therefore gRPC gets in-memory copies of
// files that match, and they are replaced atomically.
#pragma once
#include <grpcpp/grpcpp.h>

#include <asio/io_context.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/result.h"
#include "protocol/transport/tls/certificate_watch.h"
#include "protocol/transport/transport.h"

namespace gpupool::scheduler {

class Certificates {
 public:
  explicit Certificates(transport::TlsOptions files) : files_(std::move(files)) {}
  ~Certificates();
  Certificates(const Certificates&) = delete;
  Certificates& operator=(const Certificates&) = delete;

  // Reads the files. On an error, which names the wrong file, the previous version stays in use. A key that
  // other users can read or write is an error.
  Result<void> read();
  // Requires a successful read().
  std::shared_ptr<grpc::ServerCredentials> credentials() const;
  // Checks the files every `interval` and calls renew() whenever they have changed.
  void watch(asio::io_context& context, std::chrono::milliseconds interval);
  // Reads the files again now and logs the result.
  void renew();

 private:
  // One version of the files: copies in memfds, and a folder with symbolic links to them.
  struct Version {
    std::string folder;
    std::vector<int> copies;
  };
  Result<void> copy(const std::string& from, const char* name, Version& version);
  Result<void> publish(Version version);
  static void remove(const Version& version);

  const transport::TlsOptions files_;
  std::string folder_;             // contains the versions, and the link "current" to the one in use
  unsigned number_ = 0;            // number of the last version
  std::vector<Version> versions_;  // the current version, and the previous one, which gRPC may be reading
  std::optional<transport::tls::CertificateWatch> watch_;
};

}  // namespace gpupool::scheduler
