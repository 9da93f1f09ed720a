// Reads a TLS server's certificate, key and authorities again when their files have changed, without being told. poold uses it.
//
// A thread of its own looks at the files every ten seconds, since a file system may stall, and tells of a change on `context`'s thread. Where the
// files cannot be used (half of a pair is written, a mistake) the error is told, once until they change again. The destructor does not wait.
#pragma once
#include <asio/io_context.hpp>
#include <functional>
#include <memory>

#include "protocol/transport/tls/context.h"

namespace gpupool::server {

class CertificateWatch {
 public:
  using Read = Result<std::shared_ptr<const transport::tls::Context>>;
  // `changed` is called while this object lives.
  CertificateWatch(asio::io_context& context, transport::TlsOptions files, std::function<void(const Read&)> changed);
  ~CertificateWatch();
  CertificateWatch(const CertificateWatch&) = delete;
  CertificateWatch& operator=(const CertificateWatch&) = delete;

 private:
  struct Shared;
  const std::shared_ptr<Shared> shared_;  // the thread's, too
};

}  // namespace gpupool::server
