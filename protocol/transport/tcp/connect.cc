// Resolving and connecting, on Asio: every address of a host is tried within one time limit.
#include <sys/socket.h>
#include <unistd.h>

#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <cerrno>
#include <exception>

#include "protocol/transport/tcp/connection.h"

namespace gpupool::transport::tcp {
namespace {

using asio::ip::tcp;

Error cannot_connect(const Endpoint& endpoint, const std::string& why, const std::string& advice) {
  return {ErrorCode::unavailable, "cannot connect to " + endpoint.text() + ": " + why + "; " + advice};
}

// The socket comes from here and not from Asio, because Asio's are inherited by programs that the app starts.
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
    context.run();  // the handler refers to this frame
    status = asio::error::timed_out;
  }
  if (status) return -1;
  return socket.release(status);
}

Result<std::unique_ptr<Connection>> resolve_and_connect(const Endpoint& endpoint, const Options& options) {
  if (endpoint.port == 0)
    return cannot_connect(endpoint, "port 0 is no port to connect to", "give the server's port");
  const auto deadline = Clock::now() + options.connect_timeout;
  asio::io_context context(1);
  asio::error_code status;
  tcp::resolver resolver(context);
  // In this thread, not in Asio's: a guest library starts no thread for it. The resolver has its own time
  // limits.
  const auto addresses =
      resolver.resolve(endpoint.host, std::to_string(endpoint.port), tcp::resolver::numeric_service, status);
  if (status) {
    return cannot_connect(endpoint, status.message(), "check the host name");
  }
  status = asio::error::host_not_found;
  for (const auto& address : addresses) {
    const int native = connect_one(context, address.endpoint(), deadline, status);
    if (native >= 0) return adopt(native, options);
    if (Clock::now() >= deadline) break;
  }
  if (status == asio::error::timed_out) {
    return cannot_connect(endpoint,
                          "no answer within " + std::to_string(options.connect_timeout.count()) + " ms",
                          "check the address and any firewall between");
  }
  if (status == asio::error::connection_refused) {
    return cannot_connect(endpoint, "connection refused",
                          "check that poold runs there and listens on this port");
  }
  return cannot_connect(endpoint, status.message(), "check the address and the network");
}

}  // namespace

Result<std::unique_ptr<Connection>> connect(const Endpoint& endpoint, const Options& options) {
  try {
    return resolve_and_connect(endpoint, options);
  } catch (const std::exception& failure) {  // Asio out of descriptors or memory
    return cannot_connect(endpoint, failure.what(), "check the limit of open files");
  }
}

}  // namespace gpupool::transport::tcp
