#include "protocol/transport/tls/openssl.h"

#include <dlfcn.h>

#include <string>

#include "protocol/transport/tls/stream.h"

namespace gpupool::transport::tls {
namespace {

Openssl g_openssl;

Result<const Openssl*> load() {
  void* const library = ::dlopen("libssl.so.3", RTLD_NOW | RTLD_LOCAL);
  if (!library)
    return Error{ErrorCode::unavailable,
                 "TLS needs OpenSSL 3, and libssl.so.3 is not installed (package libssl3)"};
#define LOAD(function)                                                                              \
  g_openssl.function = reinterpret_cast<decltype(g_openssl.function)>(::dlsym(library, #function)); \
  if (!g_openssl.function) return Error{ErrorCode::unavailable, "libssl.so.3 has no " #function};
  GPUPOOL_OPENSSL(LOAD)
#undef LOAD
  // No cleanup at exit: threads may send until the process ends.
  if (g_openssl.OPENSSL_init_ssl(OPENSSL_INIT_NO_ATEXIT, nullptr) != 1)
    return Error{ErrorCode::unavailable, "cannot initialize OpenSSL"};
  g_openssl.socket_method = make_socket_method(g_openssl);
  if (!g_openssl.socket_method)
    return Error{ErrorCode::unavailable, "cannot initialize OpenSSL: out of memory"};
  return &g_openssl;
}

}  // namespace

Result<const Openssl*> load_openssl() {
  // Never destroyed: exit handlers use it too.
  static const auto* const loaded = new Result<const Openssl*>(load());
  return *loaded;
}

const Openssl& openssl() {
  return g_openssl;
}

}  // namespace gpupool::transport::tls
