// One TLS connection over a non-blocking socket, which the caller owns. Never blocks, never raises SIGPIPE.
// One thread at a time.
//
// A session has two of them on one socket, one after the other. The first connects client and poold and is
// authenticated by certificates; poold ends it when it has read the Hello. The second connects client and
// worker and is authenticated by a secret exported from the first (docs/adr/0019-tls.md), so that a worker
// never has the server's private key. The first stream never takes bytes of the second from the socket.
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
  // `host`: the name or numeric address that the server's certificate must have.
  static Result<std::unique_ptr<Stream>> client(std::shared_ptr<const Context> context, int socket,
                                                const std::string& host);
  static Result<std::unique_ptr<Stream>> server(std::shared_ptr<const Context> context, int socket);
  static Result<std::unique_ptr<Stream>> with_psk(Side side, int socket, const Secret& secret);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Performs one step of the handshake, as do sending and receiving. Returns true when the stream is open.
  Result<bool> open();
  bool is_open() const { return open_; }
  // Returns 0 if it would block. ErrorCode::closed: the peer has ended the stream; is_ended() tells
  // close_notify from a hang-up; malformed: the peer broke the protocol, or sent too many records without
  // data, such as key updates, in a row.
  Result<size_t> receive_some(std::span<std::byte> buffer);
  bool is_ended() const;
  // Sends at most kMostBytes. Returns 0 if it would block; the next call must then have the same bytes.
  static constexpr size_t kMostBytes = 16 * 1024;
  Result<size_t> send_some(std::span<const std::byte> bytes);
  // True if the last call that would have blocked waits for room to send, false if it waits for bytes to
  // receive.
  bool wants_to_send() const { return wants_to_send_; }
  bool has_received() const;  // receive_some() need not read the socket
  // `records`: how many are sent before the key is updated.
  void change_key_after(uint64_t records) { records_per_key_ = records; }
  void end();  // sends close_notify, if possible

  // The exported secret of an open stream: only its two ends can compute it.
  Result<Secret> secret() const;
  // Common name and alternative names of the client's verified certificate; empty if it has none.
  std::vector<std::string> certificate_names() const;
  std::string cipher() const;

 private:
  friend int use_psk_session(ssl_st*, const evp_md_st*, const unsigned char**, size_t*, ssl_session_st**);
  friend int find_psk_session(ssl_st*, const unsigned char*, size_t, ssl_session_st**);
  friend bio_method_st* make_socket_method(const Openssl&);

  Stream(std::shared_ptr<const Context> context, int socket);
  static Result<std::unique_ptr<Stream>> create(std::shared_ptr<const Context> context, int socket,
                                                Side side);
  Result<size_t> outcome(int status, size_t count);
  Error handshake_failure(const char* reason) const;
  ssl_session_st* psk_session() const;

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
  static constexpr unsigned kMostRecordsWithoutData = 32;  // in a row
  unsigned records_without_data_ = 0;
  bool socket_empty_ = false;            // the last read from the socket would have blocked
  int system_error_ = 0;                 // errno of the socket's last failure
  uint64_t records_ = 0;                 // sent with the current key
  uint64_t records_per_key_ = 1u << 22;  // AES-GCM: a key is good for about 2^24 records (RFC 8446, 5.5)
};

// OpenSSL callbacks: the first two find the key of Context::with_psk() streams.
constexpr const char* kSecretCipher = "TLS_AES_128_GCM_SHA256";
int use_psk_session(ssl_st* ssl, const evp_md_st* hash, const unsigned char** name, size_t* name_bytes,
                    ssl_session_st** session);
int find_psk_session(ssl_st* ssl, const unsigned char* name, size_t name_bytes, ssl_session_st** session);
bio_method_st* make_socket_method(const Openssl& functions);

}  // namespace gpupool::transport::tls
