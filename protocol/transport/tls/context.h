// What TLS connections of one kind have in common: who they are and whom they trust. TLS 1.3 only. Any thread.
#pragma once
#include <memory>
#include <string>

#include "protocol/transport/transport.h"
#include "protocol/wire/result.h"

struct ssl_ctx_st;

namespace gpupool::transport::tls {

class Context {
 public:
  // ErrorCode::invalid: a file cannot be used, or others can read the private key.
  // The server's certificate is checked against `options.ca` (empty: the system's authorities).
  static Result<std::shared_ptr<const Context>> client(const TlsOptions& options);
  // A client's certificate is asked for where `options.ca` says who may have signed it; clients need not have one.
  static Result<std::shared_ptr<const Context>> server(const TlsOptions& options);
  // Both sides know a secret, and nothing else counts (stream.h).
  static Result<std::shared_ptr<const Context>> by_secret(Side side);

  explicit Context(ssl_ctx_st* context) : context_(context) {}
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  ssl_ctx_st* get() const { return context_; }

 private:
  ssl_ctx_st* const context_;
};

}  // namespace gpupool::transport::tls
