// One end of a gRPC connection without TLS, with raw HTTP/2 frames: sends messages of which gRPC's own
// library would not send a part, within the flow control of its peer. One thread.
#pragma once
#include <cstdint>
#include <map>
#include <string>

namespace gpupool::testing {

class RawGrpc {
 public:
  // Listens on loopback. Throws std::runtime_error, also if no client connects within 20 s.
  class Listener {
   public:
    Listener();
    ~Listener();
    Listener(const Listener&) = delete;
    Listener& operator=(const Listener&) = delete;
    uint16_t port() const { return port_; }
    RawGrpc accept();
    // Accepts a connection and returns its first byte: kTls if it begins with a TLS handshake; -1: none came.
    int accept_first_byte();
    static constexpr int kTls = 0x16;

   private:
    int accept_socket();
    int socket_;
    uint16_t port_ = 0;
  };
  // Connects to a server on loopback. Throws std::runtime_error.
  static RawGrpc connect(uint16_t port);
  static RawGrpc connect(const std::string& path);  // of a Unix socket
  ~RawGrpc();
  RawGrpc(RawGrpc&& other) noexcept;
  RawGrpc& operator=(RawGrpc&&) = delete;

  // Begins a call of a method, like "/gpupool.pool.PoolAdmin/GetPool", and a message of which `promised`
  // bytes are announced. send() sends it.
  void call(const std::string& method, uint32_t promised);
  // Waits for the peer's next call and begins to answer it in the same way. Returns false if there is none
  // within 20 s.
  bool answer_next_call(uint32_t promised);

  // Sends zeroes on all calls until `most` bytes have been sent, the peer has ended all calls or the
  // connection, or has accepted nothing for a second. Returns the number of bytes that it has accepted.
  uint64_t send(uint64_t most);
  // True if the peer has ended all calls or the connection.
  bool refused() const { return gone_ || calls_.empty(); }

 private:
  RawGrpc(int socket, bool serves);  // takes over the socket
  struct Call {
    int64_t window;
    uint64_t left;     // of the message
    std::string head;  // its announcement, as far as it has not been sent
  };
  void put_frame(uint8_t kind, uint8_t flags, uint32_t stream, const std::string& body);
  void begin(uint32_t stream, uint32_t promised);
  void fill();
  bool write_some();
  void read_some();
  void take(uint8_t kind, uint8_t flags, uint32_t stream, const std::string& body);
  void take_settings(const std::string& body);

  int socket_;
  bool serves_;
  std::string in_, out_;
  std::map<uint32_t, Call> calls_;  // by stream
  uint32_t next_stream_ = 1;
  uint32_t asked_ = 0;  // stream of the last call of the peer
  int64_t window_ = 65'535, initial_window_ = 65'535;
  uint64_t accepted_ = 0;
  bool gone_ = false;
};

}  // namespace gpupool::testing
