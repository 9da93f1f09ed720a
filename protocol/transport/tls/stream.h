// One TLS connection over a non-blocking socket, which stays the caller's. Never blocks, never raises SIGPIPE. One thread at a time.
//
// A session has two of them, one after the other on the same socket: first client and poold, by certificates, until poold has read the
// Hello and ends it; then client and worker, by a secret that the first one gives (docs/adr). So a worker never has the server's key. No
// byte beyond what belongs to the first is ever taken from the socket by it.
#pragma once
#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "protocol/transport/tls/context.h"
#include "protocol/transport/transport.h"

struct ssl_st;
struct ssl_session_st;
struct bio_method_st;
struct evp_md_st;

namespace gpupool::transport::tls {

struct Openssl;
using Secret = std::array<char, 32>;

class Stream {
 public:
  // `host`: whom a client's certificate check expects, a name or a numeric address.
  static Result<std::unique_ptr<Stream>> client(std::shared_ptr<const Context> context, int socket, const std::string& host);
  static Result<std::unique_ptr<Stream>> server(std::shared_ptr<const Context> context, int socket);
  static Result<std::unique_ptr<Stream>> by_secret(Side side, int socket, const Secret& secret);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // One step of the opening, which sending and receiving do as well. True: it is open.
  Result<bool> open();
  bool is_open() const { return open_; }
  // 0: would block. ErrorCode::closed: the other side has ended it; is_ended() says whether it said so, or just hung up.
  Result<size_t> receive_some(std::span<std::byte> buffer);
  bool is_ended() const;
  // 0: would block; the next call must have the same bytes. At most kMostBytes count.
  static constexpr size_t kMostBytes = 16 * 1024;
  Result<size_t> send_some(std::span<const std::byte> bytes);
  // What the last call that would block waits for: room to send, or else something to receive.
  bool wants_to_send() const { return wants_to_send_; }
  bool has_received() const;  // bytes that receive_some() has at once
  void change_key_after(uint64_t records) { records_per_key_ = records; }  // sent
  void end();                 // tells the other side, if it can

  // Once open: both sides get the same, nobody else can have it.
  Result<Secret> secret() const;
  // Common name and alternative names of the client's certificate; none if it showed none.
  std::vector<std::string> certificate_names() const;
  std::string cipher() const;

 private:
  friend int use_secret(ssl_st*, const evp_md_st*, const unsigned char**, size_t*, ssl_session_st**);
  friend int find_secret(ssl_st*, const unsigned char*, size_t, ssl_session_st**);
  friend bio_method_st* make_socket_method(const Openssl&);

  Stream(std::shared_ptr<const Context> context, int socket);
  static Result<std::unique_ptr<Stream>> create(std::shared_ptr<const Context> context, int socket, Side side);
  Result<size_t> outcome(int status, size_t count);
  Error opening_failure(const char* reason) const;
  ssl_session_st* secret_session() const;

  const std::shared_ptr<const Context> context_;
  const int socket_;
  ssl_st* ssl_ = nullptr;
  Side side_ = Side::client;
  bool open_ = false;
  bool broken_ = false;
  bool wants_to_send_ = false;
  bool has_secret_ = false;
  Secret secret_{};
  std::string host_;
  int system_error_ = 0;  // of the socket's last failure
  uint64_t records_ = 0;  // sent with one key
  uint64_t records_per_key_ = 1u << 22;  // one of AES-GCM is good for about 2^24 (RFC 8446, 5.5)
};

// Of Context::by_secret(); callbacks of OpenSSL's.
constexpr const char* kSecretCipher = "TLS_AES_128_GCM_SHA256";
int use_secret(ssl_st* ssl, const evp_md_st* hash, const unsigned char** name, size_t* name_bytes, ssl_session_st** session);
int find_secret(ssl_st* ssl, const unsigned char* name, size_t name_bytes, ssl_session_st** session);
bio_method_st* make_socket_method(const Openssl& functions);

}  // namespace gpupool::transport::tls
