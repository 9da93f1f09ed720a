// Certificates and trusted authorities that TLS streams of one kind share (an SSL_CTX). TLS 1.3 only. Any
// thread.
#pragma once
#include <memory>
#include <string>

#include "common/result.h"
#include "protocol/transport/transport.h"

struct ssl_ctx_st;

namespace gpupool::transport::tls {

class Context {
 public:
  // Checks the server's certificate against `options.ca` (empty: the system's authorities).
  // ErrorCode::invalid: a file cannot be used, or other users can read the private key.
  static Result<std::shared_ptr<const Context>> client(const TlsOptions& options);
  // If `options.ca` is set, asks clients for a certificate of these authorities; they need not have one.
  // ErrorCode::invalid as for client().
  static Result<std::shared_ptr<const Context>> server(const TlsOptions& options);
  // Authenticates both sides by a secret that they share, and by nothing else (stream.h).
  static Result<std::shared_ptr<const Context>> with_psk(Side side);

  explicit Context(ssl_ctx_st* context) : context_(context) {}
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  ssl_ctx_st* get() const { return context_; }

 private:
  ssl_ctx_st* const context_;
};

}  // namespace gpupool::transport::tls
