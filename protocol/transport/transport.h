// What every transport (tcp, shm, rdma) provides: a reliable, ordered stream of bytes between a client and its worker.
//
// A Connection has one sender and one receiver at a time (each side serialises its own threads); sending and receiving
// may happen on two threads at once. send_some and receive_some never block; wait() does, until the wished direction is
// possible, the deadline passes or interrupt() is called. This split lets a client that is blocked in sending go on
// receiving, so that two full pipes cannot stop each other.
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

#include "protocol/wire/result.h"

namespace gpupool::transport {

using Clock = std::chrono::steady_clock;
using Deadline = std::optional<Clock::time_point>;  // nullopt: wait for ever

// "tcp://host:port", "tls://host:port", "rdma://host:port" (the same port: what is said over rdma begins over tcp), "shm:///path/to/socket" or
// "shm://@name" (then `host` is the path or @name, and there is no port).
struct Endpoint {
  std::string scheme;
  std::string host;
  uint16_t port = 0;
  std::string text() const;
  // ErrorCode::invalid: what is wrong, and the forms that there are.
  static Result<Endpoint> parse(const std::string& text);
  static bool has_transport(const std::string& text);  // it begins with the scheme of one that this build has, and ://
  // Several with commas between them, none twice.
  static Result<std::vector<Endpoint>> parse_list(const std::string& text);
};

class Connection;
class DirectMemory;

// How a connection uses rdma, and by which device; docs/rdma.md. What is not set is found out.
struct RdmaOptions {
  enum class Use : uint32_t {
    never,
    if_possible,  // otherwise the connection stays with tcp, and carrier() says why
    always,       // otherwise upgrade() fails
  };
  Use use = Use::never;
  // How queue pairs find each other. By the fabric's connection manager, which knows routes and service levels; by the
  // addresses that the sides tell each other, which is all that RoCE needs and takes less time; automatic: the manager on
  // InfiniBand. The manager is used where both sides have it and neither says addresses; the server decides what is automatic.
  enum class Setup { automatic, manager, addresses };
  Setup setup = Setup::automatic;
  std::string device;          // e.g. "mlx5_0"; empty: the one that has the connection's own address, else the first that is up
  unsigned port = 0;           // of the device, from 1; 0: the first that is up
  int gid_index = -1;          // -1: of the connection's own address, RoCE v2 before v1; without an address the first
  unsigned mtu = 0;            // bytes: 256, 512, 1024, 2048 or 4096; 0: the port's
  unsigned traffic_class = 0;  // 0 to 255; RoCE: DSCP and ECN bits of its packets
  unsigned service_level = 0;  // 0 to 15
  uint16_t partition_key = 0;  // 0: the port's first
  // Of a packet until it is sent again, 4.096 us times 2 to this power, 0.27 s; six times, then the connection is lost.
  unsigned timeout_exponent = 16;
};

// Of tls connections. Files are PEM.
struct TlsOptions {
  std::string ca;           // authorities that the other side's certificate must be of; empty: a client asks the system's
  std::string certificate;  // this side's, with what leads to its authority; a client may have none
  std::string key;          // of it
  std::string secret;       // adopt() only: of poold's part of the connection (tls/stream.h)
};

struct Options {
  std::chrono::milliseconds connect_timeout{5000};
  // A peer whose machine or network is gone is noticed in wait() after this long without an acknowledgement.
  std::chrono::milliseconds dead_peer_timeout{15000};
  bool bulk = false;  // carries nothing but large transfers: bandwidth counts, not latency
  // connect() to tcp on this host: take shared memory instead when a poold that can be trusted offers it (shm/).
  bool prefer_shared_memory = false;
  RdmaOptions rdma;
  TlsOptions tls;
  // Another connection of the same session, which is open: over rdma both use one device and one protection domain.
  const Connection* session = nullptr;
};

enum class Side { client, server };

class Connection {
 public:
  enum class Ready { none, receive, send, both };  // none: the deadline passed or interrupt() was called

  virtual ~Connection() = default;
  // Bytes accepted from the front of the gather list; 0: would block, and the next call begins with the same bytes (some of
  // them may be on their way in a form that cannot be taken back).
  virtual Result<size_t> send_some(std::span<const iovec> buffers) = 0;
  // Bytes received; 0: nothing there yet. End of stream is ErrorCode::closed.
  virtual Result<size_t> receive_some(std::span<std::byte> buffer) = 0;
  virtual Result<Ready> wait(bool for_receive, bool for_send, Deadline deadline) = 0;
  // How a thread that expects something soon looks for it before it sleeps in wait(): for so long, about two wake-ups' worth,
  // and how often before it lets others have its core.
  struct Patience {
    std::chrono::microseconds time{20};
    unsigned looks_per_yield = 1;  // a look is a system call
  };
  virtual Patience patience() const { return {}; }
  // For who only sends: looks whether the peer is still there, where sending itself does not tell. The next call on the connection fails if
  // it is not.
  virtual void look_for_peer() {}
  virtual void interrupt() = 0;          // thread-safe; ends one wait() (present or next)
  virtual void close() = 0;              // thread-safe; both sides see the end
  virtual std::string peer() const = 0;  // for messages, e.g. "127.0.0.1:4321"
  // The descriptor that carries the connection, given up by this object (to hand it to a worker); -1 if there is none.
  virtual int release_descriptor() = 0;

  // Each side calls this once, between the hello exchange and everything else, and a transport then switches to its fast
  // path: nothing for tcp, rings in shared memory for shm, queue pairs for rdma. May wait for the peer to do its part.
  virtual Result<void> upgrade(Side side, Deadline deadline);
  // Whether client and worker can map the same memory; only then can descriptors be passed.
  virtual bool shares_memory() const { return false; }
  // For logs, after upgrade(): what carries the bytes, e.g. "rdma (rxe0, port 1)" or "tcp (no rdma: the server has no device)".
  virtual std::string carrier() const { return "tcp"; }
  // How memory moves between the two processes without their processors; null where the transport cannot.
  virtual DirectMemory* direct_memory() { return nullptr; }
  // In order, beside the bytes. The caller keeps its descriptor. By the side's one sender, its one receiver.
  virtual Result<void> send_descriptor(int descriptor, Deadline deadline);
  virtual Result<int> receive_descriptor(Deadline deadline);
};

class Listener {
 public:
  virtual ~Listener() = default;
  virtual Result<std::unique_ptr<Connection>> accept(Deadline deadline) = 0;
  virtual Endpoint endpoint() const = 0;  // with the port that the system chose
  virtual int descriptor() const = 0;     // readable when accept() has something to do: for event loops
  virtual void close() = 0;               // thread-safe; ends accept()
};

Result<std::unique_ptr<Connection>> connect(const Endpoint& endpoint, const Options& options);
Result<std::unique_ptr<Listener>> listen(const Endpoint& endpoint, const Options& options);
// Takes over a descriptor that release_descriptor() of another process gave up; closes it on failure.
Result<std::unique_ptr<Connection>> adopt(const std::string& scheme, int descriptor, const Options& options);

// Blocking helpers over the interface.
// `blocked`, where given, grows by the time that there was no room for more.
Result<void> send_all(Connection& connection, std::span<const iovec> buffers, Deadline deadline,
                      Clock::duration* blocked = nullptr);
Result<void> receive_exact(Connection& connection, std::span<std::byte> buffer, Deadline deadline);

}  // namespace gpupool::transport
