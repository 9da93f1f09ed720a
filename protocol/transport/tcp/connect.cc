// Resolves a host and connects to it, with Asio: all its addresses are tried in turns, within one time limit.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <cerrno>
#include <chrono>
#include <exception>

#include "protocol/transport/shm/connection.h"
#include "protocol/transport/tcp/connection.h"

namespace gpupool::transport::tcp {
namespace {

using asio::ip::tcp;

// Time limit of one attempt at one address. Linux before 6.5 retransmits a lost SYN after 1 s, 3 s and 7 s,
// so within a limit of 5 s a host that becomes reachable after 3 s would be missed. A new socket restarts
// these timers.
constexpr std::chrono::milliseconds kAttempt{2000};

Error cannot_connect(const Endpoint& endpoint, const std::string& why, const std::string& advice,
                     ErrorCode code = ErrorCode::unavailable) {
  return {code, "cannot connect to " + endpoint.text() + ": " + why + "; " + advice};
}

// Made here with SOCK_CLOEXEC, because programs that the application starts would inherit Asio's sockets.
int new_socket(const tcp::endpoint& address, asio::error_code& status) {
  const int made = ::socket(address.protocol().family(), SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP);
  if (made < 0) status.assign(errno, asio::system_category());
  return made;
}

int connect_one(asio::io_context& context, const tcp::endpoint& address, Clock::time_point deadline,
                asio::error_code& status) {
  const int native = new_socket(address, status);
  if (native < 0) return -1;
  tcp::socket socket(context);
  socket.assign(address.protocol(), native, status);
  if (status) {
    ::close(native);
    return -1;
  }
  status = asio::error::timed_out;
  bool finished = false;
  socket.async_connect(address, [&](const asio::error_code& result) {
    finished = true;
    status = result;
  });
  context.restart();
  context.run_until(deadline);
  if (!finished) {
    asio::error_code ignored;
    socket.close(ignored);
    context.restart();
    context.run();  // runs the handler, which refers to this frame
    status = asio::error::timed_out;
  }
  if (status) return -1;
  return socket.release(status);
}

// True if this host would answer from the address itself. Asks the routing table; sends nothing.
bool is_this_host(const tcp::endpoint& address) {
  if (address.address().is_loopback()) return true;
  const int probe = ::socket(address.protocol().family(), SOCK_DGRAM | SOCK_CLOEXEC, IPPROTO_UDP);
  if (probe < 0) return false;
  tcp::endpoint local;
  auto size = static_cast<socklen_t>(local.capacity());
  const bool known = ::connect(probe, address.data(), static_cast<socklen_t>(address.size())) == 0 &&
                     ::getsockname(probe, local.data(), &size) == 0;
  ::close(probe);
  return known && local.address() == address.address();
}

// Connects over shared memory to a server that listens on this very address, or on all addresses of the host.
// Abstract names belong to a network namespace, so the servers of other containers are not found.
std::unique_ptr<Connection> connect_beside(const tcp::endpoint& address, const Options& options) {
  for (const std::string& host : {address.address().to_string(), std::string("0.0.0.0"), std::string("::")}) {
    if (auto connection = shm::connect_shm_of_tcp(host, address.port(), options)) return connection;
  }
  return nullptr;
}

Result<std::unique_ptr<Connection>> resolve_and_connect(const Endpoint& endpoint, const Options& options) {
  if (endpoint.port == 0) return cannot_connect(endpoint, "port 0 is not valid", "give the server's port");
  const auto deadline = Clock::now() + options.connect_timeout;
  asio::io_context context(1);
  asio::error_code status;
  tcp::resolver resolver(context);
  // In this thread rather than Asio's: the client library starts no thread for it. The resolver has its own
  // time limits.
  const auto addresses =
      resolver.resolve(endpoint.host, std::to_string(endpoint.port), tcp::resolver::numeric_service, status);
  if (status) {
    return cannot_connect(endpoint, status.message(), "check the host name");
  }
  status = asio::error::host_not_found;
  bool unanswered;
  do {
    unanswered = false;
    for (const auto& address : addresses) {
      if (options.prefer_shared_memory && is_this_host(address.endpoint())) {
        if (auto beside = connect_beside(address.endpoint(), options)) return beside;
      }
      const int native =
          connect_one(context, address.endpoint(), std::min(deadline, Clock::now() + kAttempt), status);
      if (native >= 0) return adopt(native, options);
      unanswered |= status == asio::error::timed_out;
      if (Clock::now() >= deadline) break;
    }
  } while (unanswered && Clock::now() < deadline);
  if (status == asio::error::timed_out) {
    return cannot_connect(endpoint,
                          "no answer within " + std::to_string(options.connect_timeout.count()) + " ms",
                          "check the address and any firewall between");
  }
  if (status == asio::error::connection_refused) {
    return cannot_connect(endpoint, "connection refused",
                          "check that poold runs there and listens on this port", ErrorCode::reset);
  }
  return cannot_connect(endpoint, status.message(), "check the address and the network");
}

}  // namespace

Result<std::unique_ptr<Connection>> connect(const Endpoint& endpoint, const Options& options) {
  try {
    return resolve_and_connect(endpoint, options);
  } catch (const std::exception& failure) {  // Asio ran out of descriptors or memory
    return cannot_connect(endpoint, failure.what(), "check the limit of open files");
  }
}

}  // namespace gpupool::transport::tcp
