#include "server/daemon.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <asio/io_context.hpp>
#include <asio/signal_set.hpp>
#include <cerrno>
#include <cstdio>
#include <optional>
#include <system_error>

#include "server/front_door.h"
#include "server/install_paths.h"
#include "server/log/log.h"
#include "server/version.h"
#include "server/worker_pool.h"

namespace gpupool::server {
namespace {

bool is_loopback(const std::string& numeric_host) {
  in_addr four{};
  if (::inet_pton(AF_INET, numeric_host.c_str(), &four) == 1) return (ntohl(four.s_addr) >> 24) == 127;
  in6_addr six{};
  return ::inet_pton(AF_INET6, numeric_host.c_str(), &six) == 1 && IN6_IS_ADDR_LOOPBACK(&six);
}

// Under its name there is always a whole file or none.
Result<void> write_port_file(const std::string& path, uint16_t port) {
  const std::string temporary = path + "." + std::to_string(::getpid()) + ".tmp";
  const std::string text = std::to_string(port) + "\n";
  const auto failure = [&path](int error) {
    return Error{ErrorCode::unavailable,
                 "cannot write the port file '" + path + "': " + std::generic_category().message(error)};
  };
  const int file = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) return failure(errno);
  const bool written = ::write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const int error = errno;
  ::close(file);
  if (written && ::rename(temporary.c_str(), path.c_str()) == 0) return {};
  const int last = written ? errno : error;
  ::unlink(temporary.c_str());
  return failure(last);
}

void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

int fail(const std::string& why) {
  std::fprintf(stderr, "poold: %s\n", why.c_str());
  return kExitFailure;
}

Result<std::unique_ptr<transport::Listener>> open_listener(const ServerOptions& options) {
  auto listener = transport::listen(options.listen, {.dead_peer_timeout = options.dead_peer_timeout});
  if (!listener) return listener.error();
  if (!options.insecure && !is_loopback((*listener)->endpoint().host)) {
    return Error{
        ErrorCode::invalid,
        "refusing to listen on " + options.listen.text() +
            ": it is reachable from other machines, and poold has no authentication yet, so whoever reaches "
            "it could use this host's GPUs; listen on 127.0.0.1, or give --insecure in a network you trust"};
  }
  return listener;
}

class Daemon {
 public:
  Daemon(const ServerOptions& options, std::unique_ptr<transport::Listener> listener, WorkerProgram program)
      : options_(options),
        endpoint_(listener->endpoint()),
        end_signals_(context_, SIGTERM, SIGINT),
        pool_(context_,
              {.program = std::move(program),
               .idle_workers = options.idle_workers,
               .max_sessions = options.max_sessions,
               .image_cache_bytes = uint64_t{options.image_cache_mib} << 20,
               .dead_peer_timeout = options.dead_peer_timeout},
              [this](Client client, const Refusal& refusal) { door_.refuse(std::move(client), refusal); }),
        door_(context_, std::move(listener), options.hello_timeout,
              [this](Client client) {
                if (client.bulk_token.empty()) pool_.assign(std::move(client));
                else pool_.attach(std::move(client));
              }) {}

  int run() {
    await_end_signal();
    pool_.start([this](const Result<void>& first) {
      if (!first) return give_up(first.error().message);
      open();
    });
    context_.run();
    if (port_file_written_) ::unlink(options_.port_file.c_str());
    log::info("stopped", {{"status", status_}});
    return status_;
  }

 private:
  // Ready only now: whoever reads the port file is served at once.
  void open() {
    if (stopping_) return;
    door_.open();
    if (!options_.port_file.empty()) {
      if (const auto written = write_port_file(options_.port_file, endpoint_.port); !written) {
        return give_up(written.error().message);
      }
      port_file_written_ = true;
    }
    log::info("listening", {{"address", endpoint_.text()},
                            {"device", options_.device},
                            {"version", kVersion},
                            {"max_sessions", options_.max_sessions}});
  }

  void give_up(const std::string& why) {
    status_ = fail(why);
    stop();
  }

  void await_end_signal() {
    end_signals_.async_wait([this](const asio::error_code& status, int signal) {
      if (status) return;
      log::info("stopping", {{"signal", signal}});
      stop();
    });
  }

  void stop() {
    if (std::exchange(stopping_, true)) return;
    door_.close();
    pool_.stop([this] {
      end_signals_.cancel();
      context_.stop();
    });
  }

  const ServerOptions& options_;
  const transport::Endpoint endpoint_;
  asio::io_context context_{1};
  asio::signal_set end_signals_;
  WorkerPool pool_;
  FrontDoor door_;
  bool stopping_ = false;
  bool port_file_written_ = false;
  int status_ = 0;
};

}  // namespace

int run_daemon(const ServerOptions& options) {
  ::signal(SIGPIPE, SIG_IGN);
  raise_descriptor_limit();
  const auto device = device_library_path(options.device);
  if (!device) return fail(device.error().message);
  const auto program = worker_program_path();
  if (!program) return fail(program.error().message);
  auto listener = open_listener(options);
  if (!listener) return fail(listener.error().message);
  log::start(STDERR_FILENO, options.log_level, options.log_format, "poold");
  Daemon daemon(options, std::move(*listener),
                {.program = *program,
                 .device = *device,
                 .log_level = options.log_level,
                 .log_format = options.log_format});
  return daemon.run();
}

}  // namespace gpupool::server
