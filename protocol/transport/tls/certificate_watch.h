// Reads a TLS server's certificate, key and client authorities again when their files change. Used by the
// daemon.
//
// A thread of its own checks the files every `interval`, since a file system may stall, and reports a change
// on `context`'s thread. Unusable files (only one of a pair written yet, a mistake) are reported as an error,
// once until they change again. The destructor does not wait for the thread.
#pragma once
#include <asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <memory>

#include "protocol/transport/tls/context.h"

namespace gpupool::transport::tls {

class CertificateWatch {
 public:
  using Read = Result<std::shared_ptr<const transport::tls::Context>>;
  // `changed` is not called after the destructor.
  CertificateWatch(asio::io_context& context, transport::TlsOptions files, std::chrono::milliseconds interval,
                   std::function<void(const Read&)> changed);
  ~CertificateWatch();
  CertificateWatch(const CertificateWatch&) = delete;
  CertificateWatch& operator=(const CertificateWatch&) = delete;

 private:
  struct Shared;
  const std::shared_ptr<Shared> shared_;  // shared with the thread
};

}  // namespace gpupool::transport::tls
