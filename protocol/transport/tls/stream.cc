#include "protocol/transport/tls/stream.h"

#include <arpa/inet.h>
#include <openssl/sslerr.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "protocol/transport/socket/connection.h"
#include "protocol/transport/tls/openssl.h"

namespace gpupool::transport::tls {
namespace {

constexpr char kSecretLabel[] = "EXPORTER-gpupool-worker";
constexpr char kSecretName[] = "gpupool";

bool is_numeric(const std::string& host) {
  unsigned char address[16];
  return ::inet_pton(AF_INET, host.c_str(), address) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), address) == 1;
}

Stream* stream_of(SSL* ssl) {
  return static_cast<Stream*>(openssl().SSL_get_ex_data(ssl, 0));
}

}  // namespace

// A BIO of our own, because OpenSSL's socket BIO raises SIGPIPE.
BIO_METHOD* make_socket_method(const Openssl& functions) {
  BIO_METHOD* const method = functions.BIO_meth_new(BIO_TYPE_SOURCE_SINK | 100, "gpupool socket");
  if (!method) return nullptr;
  functions.BIO_meth_set_write(method, [](BIO* bio, const char* bytes, int count) {
    Stream& stream = *static_cast<Stream*>(openssl().BIO_get_data(bio));
    openssl().BIO_clear_flags(bio, BIO_FLAGS_RWS | BIO_FLAGS_SHOULD_RETRY);
    ssize_t sent = 0;
    while ((sent = ::send(stream.socket_, bytes, static_cast<size_t>(count), MSG_NOSIGNAL | MSG_DONTWAIT)) <
               0 &&
           errno == EINTR) {
    }
    if (sent >= 0) return static_cast<int>(sent);
    if (errno == EAGAIN || errno == EWOULDBLOCK)
      openssl().BIO_set_flags(bio, BIO_FLAGS_WRITE | BIO_FLAGS_SHOULD_RETRY);
    else
      stream.system_error_ = errno;
    return -1;
  });
  functions.BIO_meth_set_read(method, [](BIO* bio, char* bytes, int count) {
    Stream& stream = *static_cast<Stream*>(openssl().BIO_get_data(bio));
    openssl().BIO_clear_flags(bio, BIO_FLAGS_RWS | BIO_FLAGS_SHOULD_RETRY);
    stream.socket_empty_ = false;
    ssize_t received = 0;
    while ((received = ::recv(stream.socket_, bytes, static_cast<size_t>(count), MSG_DONTWAIT)) < 0 &&
           errno == EINTR) {
    }
    if (received > 0) return static_cast<int>(received);
    if (received == 0)
      openssl().BIO_set_flags(bio, BIO_FLAGS_IN_EOF);
    else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      stream.socket_empty_ = true;
      openssl().BIO_set_flags(bio, BIO_FLAGS_READ | BIO_FLAGS_SHOULD_RETRY);
    } else
      stream.system_error_ = errno;
    return static_cast<int>(received);
  });
  functions.BIO_meth_set_ctrl(
      method, [](BIO*, int command, long, void*) -> long { return command == BIO_CTRL_FLUSH ? 1 : 0; });
  return method;
}

Stream::Stream(std::shared_ptr<const Context> context, int socket)
    : context_(std::move(context)), socket_(socket) {}

Stream::~Stream() {
  if (ssl_) openssl().SSL_free(ssl_);
}

Result<std::unique_ptr<Stream>> Stream::create(std::shared_ptr<const Context> context, int socket,
                                               Side side) {
  const Openssl& functions = openssl();
  std::unique_ptr<Stream> stream(new Stream(std::move(context), socket));
  BIO* const bio = functions.BIO_new(functions.socket_method);
  stream->ssl_ = functions.SSL_new(stream->context_->get());
  if (!bio || !stream->ssl_) return Error{ErrorCode::unavailable, "OpenSSL is out of memory"};
  functions.BIO_set_data(bio, stream.get());
  functions.BIO_set_init(bio, 1);
  functions.SSL_set_bio(stream->ssl_, bio, bio);
  functions.SSL_set_ex_data(stream->ssl_, 0, stream.get());
  stream->side_ = side;
  if (side == Side::client)
    functions.SSL_set_connect_state(stream->ssl_);
  else
    functions.SSL_set_accept_state(stream->ssl_);
  return stream;
}

Result<std::unique_ptr<Stream>> Stream::client(std::shared_ptr<const Context> context, int socket,
                                               const std::string& host) {
  auto stream = create(std::move(context), socket, Side::client);
  if (!stream) return stream;
  const Openssl& functions = openssl();
  SSL* const ssl = (*stream)->ssl_;
  (*stream)->host_ = host;
  bool named = false;
  if (is_numeric(host)) {
    named = functions.X509_VERIFY_PARAM_set1_ip_asc(functions.SSL_get0_param(ssl), host.c_str()) == 1;
  } else {
    named = functions.SSL_set1_host(ssl, host.c_str()) == 1 &&
            functions.SSL_ctrl(ssl, SSL_CTRL_SET_TLSEXT_HOSTNAME, TLSEXT_NAMETYPE_host_name,
                               const_cast<char*>(host.c_str())) == 1;
  }
  if (!named)
    return Error{ErrorCode::invalid, "'" + host + "' is not a valid host name for a certificate check"};
  return stream;
}

Result<std::unique_ptr<Stream>> Stream::server(std::shared_ptr<const Context> context, int socket) {
  return create(std::move(context), socket, Side::server);
}

Result<std::unique_ptr<Stream>> Stream::with_psk(Side side, int socket, const Secret& secret) {
  auto context = Context::with_psk(side);
  if (!context) return context.error();
  auto stream = create(std::move(*context), socket, side);
  if (!stream) return stream;
  (*stream)->has_secret_ = true;
  (*stream)->secret_ = secret;
  return stream;
}

SSL_SESSION* Stream::psk_session() const {
  const Openssl& functions = openssl();
  constexpr unsigned char kAes128GcmSha256[] = {0x13, 0x01};
  const SSL_CIPHER* const cipher = functions.SSL_CIPHER_find(ssl_, kAes128GcmSha256);
  SSL_SESSION* const session = functions.SSL_SESSION_new();
  const auto* const key = reinterpret_cast<const unsigned char*>(secret_.data());
  if (session && cipher && functions.SSL_SESSION_set1_master_key(session, key, secret_.size()) == 1 &&
      functions.SSL_SESSION_set_cipher(session, cipher) == 1 &&
      functions.SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1) {
    return session;
  }
  functions.SSL_SESSION_free(session);
  return nullptr;
}

int use_psk_session(SSL* ssl, const EVP_MD*, const unsigned char** name, size_t* name_bytes,
                    SSL_SESSION** session) {
  *name = reinterpret_cast<const unsigned char*>(kSecretName);
  *name_bytes = sizeof kSecretName - 1;
  *session = stream_of(ssl)->psk_session();
  return *session ? 1 : 0;
}

int find_psk_session(SSL* ssl, const unsigned char* name, size_t name_bytes, SSL_SESSION** session) {
  const bool known = name_bytes == sizeof kSecretName - 1 && std::memcmp(name, kSecretName, name_bytes) == 0;
  *session = known ? stream_of(ssl)->psk_session() : nullptr;
  return !known || *session ? 1 : 0;
}

// Describes why the handshake failed, and what the user can do about it. `reason`: OpenSSL's, or null if the
// peer hung up.
Error Stream::handshake_failure(const char* reason) const {
  const Openssl& functions = openssl();
  const std::string text = reason ? reason : "the peer closed the connection";
  const auto refused = [](const std::string& why) { return Error{ErrorCode::refused, why}; };
  if (has_secret_) return refused("TLS handshake with the worker failed: " + text);
  const long verified = functions.SSL_get_verify_result(ssl_);
  if (side_ == Side::server) {
    if (verified != X509_V_OK) {
      return refused(std::string("the client's certificate was rejected: ") +
                     functions.X509_verify_cert_error_string(verified));
    }
    return refused("TLS handshake failed: " + text);
  }
  const std::string certificate = "the server's certificate was rejected: ";
  switch (verified) {
    case X509_V_OK: break;
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
      return refused(certificate + "it was not issued for '" + host_ +
                     "'; use a name in GPUPOOL that the certificate has");
    case X509_V_ERR_CERT_HAS_EXPIRED:
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return refused(certificate + functions.X509_verify_cert_error_string(verified) +
                     "; renew it, or check this machine's clock");
    default:
      return refused(certificate + functions.X509_verify_cert_error_string(verified) +
                     "; set GPUPOOL_TLS_CA to the file with its CA's certificate");
  }
  if (!reason || text.find("wrong version number") != std::string::npos) {
    return refused("TLS handshake failed: " + text +
                   "; check that poold listens on this port with tls:// (for a tcp:// port use tcp://)");
  }
  return refused("TLS handshake failed: " + text);
}

// Translates the status of an SSL_ function that has moved `count` bytes.
Result<size_t> Stream::outcome(int status, size_t count) {
  const Openssl& functions = openssl();
  wants_to_send_ = false;
  if (status == 1) return count;
  const int kind = functions.SSL_get_error(ssl_, status);
  const unsigned long code = functions.ERR_peek_error();
  const char* const reason = functions.ERR_reason_error_string(code);
  functions.ERR_clear_error();
  switch (kind) {
    case SSL_ERROR_WANT_WRITE: wants_to_send_ = true; return size_t{0};
    case SSL_ERROR_WANT_READ: return size_t{0};
    case SSL_ERROR_ZERO_RETURN: return Error{ErrorCode::closed, "the peer closed the connection"};
    default: break;
  }
  broken_ = true;
  const bool end_of_file =
      kind == SSL_ERROR_SSL && ERR_GET_REASON(code) == SSL_R_UNEXPECTED_EOF_WHILE_READING;
  if (system_error_ != 0 && open_) {
    return Error{is_reset(system_error_) ? ErrorCode::reset : ErrorCode::lost,
                 "connection lost: " + std::generic_category().message(system_error_)};
  }
  if (!open_)
    return handshake_failure(end_of_file || system_error_ != 0 || kind == SSL_ERROR_SYSCALL ? nullptr
                                                                                            : reason);
  if (end_of_file || kind == SSL_ERROR_SYSCALL)
    return Error{ErrorCode::closed, "the peer closed the connection"};
  const std::string text = reason ? reason : "protocol error";
  // With TLS 1.3 a client has completed its handshake before it learns that the server rejects its
  // certificate.
  if (side_ == Side::client && !has_secret_ && text.find("alert") != std::string::npos) {
    return Error{ErrorCode::refused, "the server rejected this client's certificate (" + text +
                                         "); check GPUPOOL_TLS_CERT and GPUPOOL_TLS_KEY"};
  }
  return Error{ErrorCode::malformed, "TLS: " + text};
}

Result<bool> Stream::open() {
  if (open_) return true;
  const Openssl& functions = openssl();
  functions.ERR_clear_error();
  const int status = functions.SSL_do_handshake(ssl_);
  const auto done = outcome(status, 1);
  if (!done) return done.error();
  if (*done == 0) return false;
  if (has_secret_ && functions.SSL_session_reused(ssl_) != 1) {
    broken_ = true;
    return Error{ErrorCode::refused,
                 "TLS handshake with the worker failed: the peer does not have the pre-shared key"};
  }
  open_ = true;
  return true;
}

Result<size_t> Stream::receive_some(std::span<std::byte> buffer) {
  const auto opened = open();
  if (!opened) return opened.error();
  if (!*opened || buffer.empty()) return size_t{0};
  do {
    size_t count = 0;
    openssl().ERR_clear_error();
    socket_empty_ = false;
    const int status = openssl().SSL_read_ex(ssl_, buffer.data(), buffer.size(), &count);
    const auto received = outcome(status, count);
    if (received && *received != 0) records_without_data_ = 0;
    if (!received || *received != 0 || socket_empty_ || wants_to_send_) return received;
    // OpenSSL has read a record without data (see Context).
  } while (++records_without_data_ <= kMostRecordsWithoutData);
  broken_ = true;
  return Error{ErrorCode::malformed, "TLS: too many records without data, such as key updates"};
}

Result<size_t> Stream::send_some(std::span<const std::byte> bytes) {
  const auto opened = open();
  if (!opened) return opened.error();
  if (!*opened || bytes.empty()) return size_t{0};
  if (records_ >= records_per_key_ && openssl().SSL_key_update(ssl_, SSL_KEY_UPDATE_NOT_REQUESTED) == 1)
    records_ = 0;
  size_t count = 0;
  openssl().ERR_clear_error();
  const int status = openssl().SSL_write_ex(ssl_, bytes.data(), std::min(bytes.size(), kMostBytes), &count);
  auto sent = outcome(status, count);
  if (sent && *sent != 0) ++records_;
  return sent;
}

bool Stream::is_ended() const {
  return (openssl().SSL_get_shutdown(ssl_) & SSL_RECEIVED_SHUTDOWN) != 0;
}
bool Stream::has_received() const {
  return open_ && openssl().SSL_pending(ssl_) > 0;
}

void Stream::end() {
  if (!open_ || broken_) return;
  openssl().ERR_clear_error();
  openssl().SSL_shutdown(ssl_);
  openssl().ERR_clear_error();
}

Result<Secret> Stream::secret() const {
  Secret made{};
  if (open_ &&
      openssl().SSL_export_keying_material(ssl_, reinterpret_cast<unsigned char*>(made.data()), made.size(),
                                           kSecretLabel, sizeof kSecretLabel - 1, nullptr, 0, 0) == 1) {
    return made;
  }
  return Error{ErrorCode::unavailable, "OpenSSL cannot export the secret for the worker's connection"};
}

std::string Stream::cipher() const {
  const SSL_CIPHER* const used = openssl().SSL_get_current_cipher(ssl_);
  return used ? openssl().SSL_CIPHER_get_name(used) : "";
}

}  // namespace gpupool::transport::tls
