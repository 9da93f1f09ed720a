#include "protocol/transport/tls/context.h"

#include <unistd.h>

#include "common/files/exposure.h"
#include "protocol/transport/tls/openssl.h"
#include "protocol/transport/tls/stream.h"

namespace gpupool::transport::tls {
namespace {

Error wrong_file(const std::string& file, const std::string& what) {
  const Openssl& ssl = openssl();
  const char* const reason = ssl.ERR_reason_error_string(ssl.ERR_peek_error());
  const std::string why = ::access(file.c_str(), R_OK) != 0 ? "it cannot be read"
                          : reason                          ? reason
                                                            : "it contains none";
  ssl.ERR_clear_error();
  return {ErrorCode::invalid, "'" + file + "' cannot be used as " + what + " (PEM): " + why};
}

// Makes an encrypted key fail instead of prompting on the program's terminal.
int no_password(char*, int, int, void*) {
  return -1;
}

Result<std::shared_ptr<const Context>> create(const SSL_METHOD* method) {
  const Openssl& ssl = openssl();
  SSL_CTX* const context = ssl.SSL_CTX_new(method);
  if (!context) return Error{ErrorCode::unavailable, "OpenSSL cannot create a context"};
  auto made = std::make_shared<const Context>(context);
  ssl.SSL_CTX_ctrl(context, SSL_CTRL_SET_MIN_PROTO_VERSION, TLS1_3_VERSION, nullptr);
  ssl.SSL_CTX_ctrl(context, SSL_CTRL_MODE,
                   SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER, nullptr);
  // SSL_read returns after each record without data, so that a peer that sends only key updates cannot keep
  // the caller in it.
  ssl.SSL_CTX_ctrl(context, SSL_CTRL_CLEAR_MODE, SSL_MODE_AUTO_RETRY, nullptr);
  ssl.SSL_CTX_ctrl(context, SSL_CTRL_SET_SESS_CACHE_MODE, SSL_SESS_CACHE_OFF, nullptr);
  // No session tickets: a server then sends nothing after its handshake that the client would have to read
  // first.
  ssl.SSL_CTX_set_num_tickets(context, 0);
  ssl.SSL_CTX_set_default_passwd_cb(context, no_password);
  ssl.ERR_clear_error();
  return made;
}

Result<void> use_certificate(SSL_CTX* context, const TlsOptions& options) {
  if (auto private_to_us = files::check_secret(options.key); !private_to_us) return private_to_us;
  const Openssl& ssl = openssl();
  if (ssl.SSL_CTX_use_certificate_chain_file(context, options.certificate.c_str()) != 1) {
    return wrong_file(options.certificate, "a certificate");
  }
  if (ssl.SSL_CTX_use_PrivateKey_file(context, options.key.c_str(), SSL_FILETYPE_PEM) != 1) {
    return wrong_file(options.key, "the private key of '" + options.certificate + "'");
  }
  if (ssl.SSL_CTX_check_private_key(context) != 1)
    return wrong_file(options.key, "the private key of '" + options.certificate + "'");
  return {};
}

}  // namespace

Context::~Context() {
  openssl().SSL_CTX_free(context_);
}

Result<std::shared_ptr<const Context>> Context::client(const TlsOptions& options) {
  const auto ssl = load_openssl();
  if (!ssl) return ssl.error();
  auto made = create((*ssl)->TLS_client_method());
  if (!made) return made;
  SSL_CTX* const context = (*made)->get();
  (*ssl)->SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  if (options.ca.empty()) {
    (*ssl)->SSL_CTX_set_default_verify_paths(context);  // missing files trust no authority
  } else if ((*ssl)->SSL_CTX_load_verify_locations(context, options.ca.c_str(), nullptr) != 1) {
    return wrong_file(options.ca, "CA certificates (GPUPOOL_TLS_CA)");
  }
  if (options.certificate.empty() != options.key.empty()) {
    return Error{ErrorCode::invalid, "set both GPUPOOL_TLS_CERT and GPUPOOL_TLS_KEY, or neither"};
  }
  if (!options.certificate.empty()) {
    if (auto used = use_certificate(context, options); !used) return used.error();
  }
  (*ssl)->ERR_clear_error();
  return made;
}

Result<std::shared_ptr<const Context>> Context::server(const TlsOptions& options) {
  const auto ssl = load_openssl();
  if (!ssl) return ssl.error();
  auto made = create((*ssl)->TLS_server_method());
  if (!made) return made;
  SSL_CTX* const context = (*made)->get();
  if (auto used = use_certificate(context, options); !used) return used.error();
  if (!options.ca.empty()) {
    if ((*ssl)->SSL_CTX_load_verify_locations(context, options.ca.c_str(), nullptr) != 1) {
      return wrong_file(options.ca, "CA certificates for clients");
    }
    (*ssl)->SSL_CTX_set_client_CA_list(context, (*ssl)->SSL_load_client_CA_file(options.ca.c_str()));
    (*ssl)->SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  }
  (*ssl)->ERR_clear_error();
  return made;
}

Result<std::shared_ptr<const Context>> Context::with_psk(Side side) {
  const auto ssl = load_openssl();
  if (!ssl) return ssl.error();
  auto made = create(side == Side::client ? (*ssl)->TLS_client_method() : (*ssl)->TLS_server_method());
  if (!made) return made;
  SSL_CTX* const context = (*made)->get();
  (*ssl)->SSL_CTX_set_ciphersuites(context, kSecretCipher);
  // The client trusts no authority and the server has no certificate, so only the secret can authenticate
  // them.
  if (side == Side::client) {
    (*ssl)->SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
    (*ssl)->SSL_CTX_set_psk_use_session_callback(context, use_psk_session);
  } else {
    (*ssl)->SSL_CTX_set_psk_find_session_callback(context, find_psk_session);
  }
  return made;
}

}  // namespace gpupool::transport::tls
