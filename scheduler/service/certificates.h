// The certificate, key and authorities with which pool-scheduler serves TLS, and their renewal while it runs.
//
// gRPC reads them from files again and again and takes what is there: with half of a renewed pair it would let nobody in, and without a file
// it would end. So it is shown copies in memory, of files that fit together, which are replaced all at once. The engine's thread.
#pragma once
#include <grpcpp/grpcpp.h>

#include <asio/io_context.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "protocol/transport/transport.h"
#include "protocol/wire/result.h"
#include "server/certificate_watch.h"

namespace gpupool::scheduler {

class Certificates {
 public:
  explicit Certificates(transport::TlsOptions files) : files_(std::move(files)) {}
  ~Certificates();
  Certificates(const Certificates&) = delete;
  Certificates& operator=(const Certificates&) = delete;

  // Reads the files. An error changes nothing, and says which file is wrong.
  Result<void> read();
  // After the first read().
  std::shared_ptr<grpc::ServerCredentials> credentials() const;
  // Reads them again whenever they have changed, and logs what came of it.
  void watch(asio::io_context& context);
  // Again at once.
  void renew();

 private:
  // Copies of the files as they were at one moment: descriptors of memory, and a folder with links to them.
  struct Version {
    std::string folder;
    std::vector<int> copies;
  };
  Result<void> copy(const std::string& from, const char* name, Version& version);
  Result<void> show(Version version);
  static void remove(const Version& version);

  const transport::TlsOptions files_;
  std::string folder_;       // with the versions, and a link to the one that is in use
  unsigned number_ = 0;      // of the last version
  std::vector<Version> shown_;  // the last one, and the one before, which gRPC may be reading
  std::optional<server::CertificateWatch> watch_;
};

}  // namespace gpupool::scheduler
