// The interface of all transports (tcp, tls, shm, rdma): a reliable, ordered byte stream between a client and
// its worker. Used by the client libraries, poold and workers. Fails with Result errors; nothing throws.
//
// A Connection has one sender and one receiver at a time (each side serialises its own threads), which may be
// two threads. send_some() and receive_some() never block. wait() blocks until a requested direction is
// ready, the deadline passes or, unless it waits only for room to send, interrupt() is called. This split
// lets a client that is blocked in sending go on receiving, so that two full pipes cannot deadlock.
#pragma once
#include <sys/uio.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/result.h"

namespace gpupool::transport {

using Clock = std::chrono::steady_clock;
using Deadline = std::optional<Clock::time_point>;  // nullopt: wait forever

// "tcp://host:port", "tls://host:port", "rdma://host:port" (a TCP port: rdma connections begin as tcp),
// "shm:///path/to/socket" or "shm://@name". For shm, `host` is the path or @name, and there is no port.
struct Endpoint {
  std::string scheme;
  std::string host;
  uint16_t port = 0;
  std::string text() const;
  // ErrorCode::invalid: the text is no address; the message says why and lists the valid forms.
  static Result<Endpoint> parse(const std::string& text);
  static bool has_transport(const std::string& text);  // begins with the scheme of a transport, and ://
  // Parses a comma-separated list. ErrorCode::invalid if an address occurs twice.
  static Result<std::vector<Endpoint>> parse_list(const std::string& text);
};

class Connection;
class DirectMemory;

// What the connections of one session have in common: over rdma the device, its protection domain and the
// memory that is registered with it. Outlives each of them. Only the transport that made it looks inside.
class SessionResources {
 public:
  virtual ~SessionResources() = default;
};

// How a connection uses RDMA, and with which device; see docs/rdma.md. Options that are not set are detected.
struct RdmaOptions {
  enum class Use : uint32_t {
    never,
    if_possible,  // else the connection stays on tcp, and carrier() says why
    always,       // else upgrade() fails
  };
  Use use = Use::never;
  // How queue pairs find each other. manager: through librdmacm, which knows the fabric's routes and service
  // levels. addresses: through the addresses that the sides exchange, which is faster and enough for RoCE.
  // automatic: the manager on InfiniBand. The manager is used only if both sides have it and neither asks for
  // addresses; the server resolves automatic.
  enum class Setup { automatic, manager, addresses };
  Setup setup = Setup::automatic;
  // e.g. "mlx5_0"; empty: the device with the connection's own address, else the first that is up
  std::string device;
  unsigned port = 0;  // port of the device, from 1; 0: the first that is up
  // -1: the connection's own address, RoCE v2 before v1; without an address, the first entry
  int gid_index = -1;
  unsigned mtu = 0;            // bytes: 256, 512, 1024, 2048 or 4096; 0: the port's MTU
  unsigned traffic_class = 0;  // 0 to 255; RoCE: DSCP and ECN bits of packets
  unsigned service_level = 0;  // 0 to 15
  uint16_t partition_key = 0;  // 0: the port's first partition key
  // A packet is sent again after 4.096 us * 2^timeout_exponent (16: 0.27 s), six times; then the connection
  // is lost.
  unsigned timeout_exponent = 16;
};

enum class Side { client, server };

// Options of tls connections. Files are PEM.
struct TlsOptions {
  // Authorities that must have signed the peer's certificate; empty: for a client the system's.
  std::string ca;
  std::string certificate;  // own certificate, followed by its chain; optional for clients
  std::string key;          // private key of `certificate`
  // adopt() only:
  std::string secret;        // key of 32 bytes: exported from poold's TLS stream (tls/stream.h), or between
                             // servers peers::channel_key()
  Side side = Side::server;  // this end's
};

struct Options {
  std::chrono::milliseconds connect_timeout{5000};
  // wait() fails with ErrorCode::lost if the peer's machine owes an acknowledgement for this long.
  std::chrono::milliseconds dead_peer_timeout{15000};
  bool bulk = false;  // carries only large transfers: bandwidth matters, not latency
  // connect() to a tcp address of this host: use shared memory instead if a trusted poold offers it (shm/).
  bool prefer_shared_memory = false;
  RdmaOptions rdma;
  TlsOptions tls;
  // session_resources() of another connection of the same session. With `bulk` the new connection only uses
  // them; otherwise it is to replace the session's own connection, which has broken.
  std::shared_ptr<SessionResources> session;
};

class Connection {
 public:
  enum class Ready { none, receive, send, both };  // none: the deadline passed or interrupt() was called

  virtual ~Connection() = default;
  // Sends from the front of the gather list. Returns the bytes accepted, or 0 if it would block. The next
  // call must then begin with the same bytes, since some of them may already be on their way.
  virtual Result<size_t> send_some(std::span<const iovec> buffers) = 0;
  // Returns the bytes received, or 0 if there are none yet. ErrorCode::closed: the end of the stream.
  virtual Result<size_t> receive_some(std::span<std::byte> buffer) = 0;
  // A wait for no direction ends at its deadline or by interrupt(). The end of the connection need not end
  // it; if it does, wait() fails.
  virtual Result<Ready> wait(bool for_receive, bool for_send, Deadline deadline) = 0;
  // How long a thread that expects data soon polls for it before it sleeps in wait(), about the cost of two
  // wake-ups, and how often it polls before it yields its core.
  struct Patience {
    std::chrono::microseconds time{20};
    unsigned polls_per_yield = 1;  // a poll is a system call
  };
  virtual Patience patience() const { return {}; }
  // For a side that only sends, on transports where sending does not notice a dead peer: checks whether the
  // peer is alive. If it is not, the next call on the connection fails.
  virtual void check_peer_alive() {}
  // Blocks until the connection has ended: the peer has closed it (bytes may still be unread), it is lost, or
  // close() was called. Thread-safe, beside sender and receiver. Connections that cannot tell return at once.
  // Returns true if the peer's system is known to have closed it in an orderly way.
  virtual bool wait_for_end() { return false; }
  // Gives up what carries the bytes, because the peer no longer answers on it. False: the connection cannot
  // continue on another carrier. Thread-safe.
  virtual bool break_carrier(const Error&) { return false; }
  // True if what was sent can still be received after the connection has broken, because it lies in memory of
  // both sides.
  virtual bool outlives_break() const { return false; }
  // Thread-safe. Ends one wait() (present or next) that waits to receive or for no direction. One that waits
  // only to send goes on: it may be another thread's, and the interrupt is for the one that receives.
  virtual void interrupt() = 0;
  virtual void close() = 0;  // thread-safe; both sides see the end
  // Ends the connection without waiting for the peer, because another connection replaces it. On return the
  // peer reaches no memory by it any more. Thread-safe.
  virtual void abandon() { close(); }
  virtual std::string peer() const = 0;  // for messages, e.g. "127.0.0.1:4321"
  // Gives up the descriptor that carries the connection, so that it can be passed to a worker; -1 if there is
  // none.
  virtual int release_descriptor() = 0;

  // Switches to the transport's fast path: none for tcp, rings in shared memory for shm, queue pairs for
  // rdma, the stream with the worker for tls. Each side calls this once, after the hello exchange and before
  // anything else. May wait for the peer.
  virtual Result<void> upgrade(Side side, Deadline deadline);
  // True if client and worker can map the same memory. Only then can descriptors be passed.
  virtual bool shares_memory() const { return false; }
  // After upgrade(): what carries the bytes, for logs, e.g. "rdma (rxe0, port 1)" or "tcp (no rdma: the
  // server has no device)".
  virtual std::string carrier() const { return "tcp"; }
  // One-sided access to the peer's memory; null if the transport has none.
  virtual DirectMemory* direct_memory() { return nullptr; }
  // After upgrade(), for Options::session; null if the transport has none. Thread-safe.
  virtual std::shared_ptr<SessionResources> session_resources() const { return nullptr; }
  // After upgrade(): when the connection breaks, transfers of direct_memory() wait for the connection that
  // replaces it, until close(). Otherwise they fail.
  virtual void expect_replacement() {}
  // Passes descriptors in order, but independently of the byte stream. The caller keeps its descriptor.
  // send_descriptor() is for the side's sender, receive_descriptor() for its receiver.
  virtual Result<void> send_descriptor(int descriptor, Deadline deadline);
  virtual Result<int> receive_descriptor(Deadline deadline);
};

class Listener {
 public:
  virtual ~Listener() = default;
  virtual Result<std::unique_ptr<Connection>> accept(Deadline deadline) = 0;
  virtual Endpoint endpoint() const = 0;  // with the port that the system has chosen
  virtual int descriptor() const = 0;     // for event loops: readable when accept() has something to do
  virtual void close() = 0;               // thread-safe; ends accept()
};

// ErrorCode::reset: the host is there, but nothing listens at this address.
Result<std::unique_ptr<Connection>> connect(const Endpoint& endpoint, const Options& options);
Result<std::unique_ptr<Listener>> listen(const Endpoint& endpoint, const Options& options);
// Takes over the socket of a listener that this process's previous program has made; closes it on failure.
Result<std::unique_ptr<Listener>> take_over(int socket, const Endpoint& endpoint, const Options& options);
// Takes over a descriptor that another process gave up with release_descriptor(); closes it on failure.
Result<std::unique_ptr<Connection>> adopt(const std::string& scheme, int descriptor, const Options& options);
// A connection over a stream socket of any kind that is connected already, for instance one of a pair. Takes
// over the descriptor, and closes it on failure. `peer` is for messages.
Result<std::unique_ptr<Connection>> adopt_stream(int descriptor, std::string peer, const Options& options);

// Blocking helpers. ErrorCode::lost if the deadline passes. `blocked`, if given, grows by the time spent
// waiting for room.
Result<void> send_all(Connection& connection, std::span<const iovec> buffers, Deadline deadline,
                      Clock::duration* blocked = nullptr);
// ErrorCode::closed if the stream ends before the first byte, ErrorCode::lost if it ends after that.
Result<void> receive_exact(Connection& connection, std::span<std::byte> buffer, Deadline deadline);

}  // namespace gpupool::transport
