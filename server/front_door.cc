#include "server/front_door.h"

#include <unistd.h>

#include "server/half_open.h"
#include "server/log/log.h"

namespace gpupool::server {
namespace {

constexpr size_t kMostHalfOpen = 256;
constexpr int kMostAcceptedAtOnce = 32;  // then others get a turn
constexpr std::chrono::milliseconds kPauseAfterFailure{100};
constexpr unsigned kReportsPerSecond = 20;

}  // namespace

FrontDoor::FrontDoor(asio::io_context& context, std::unique_ptr<transport::Listener> listener,
                     std::chrono::milliseconds hello_timeout, Admit admit)
    : context_(context),
      listener_(std::move(listener)),
      hello_timeout_(hello_timeout),
      admit_(std::move(admit)),
      readable_(context, listener_->descriptor()),
      pause_(context) {}

FrontDoor::~FrontDoor() {
  close();
  readable_.release();
}

void FrontDoor::open() {
  await_connection();
}

void FrontDoor::close() {
  if (std::exchange(closed_, true)) return;
  pause_.cancel();
  readable_.cancel();
  listener_->close();
  while (!half_open_.empty()) half_open_.front()->drop();
}

void FrontDoor::await_connection() {
  readable_.async_wait(asio::posix::stream_descriptor::wait_read, [this](const asio::error_code& status) {
    if (!status && !closed_) accept_some();
  });
}

void FrontDoor::accept_some() {
  for (int count = 0; count < kMostAcceptedAtOnce; ++count) {
    auto connection = listener_->accept(transport::Clock::now());
    if (connection) {
      add(std::move(*connection));
      continue;
    }
    if (connection.error().code != ErrorCode::unavailable) break;  // nobody there
    // Out of descriptors or memory: sessions that end will free some.
    log::error("accept_failed", {{"reason", connection.error().message}});
    pause_.expires_after(kPauseAfterFailure);
    pause_.async_wait([this](const asio::error_code& status) {
      if (!status && !closed_) await_connection();
    });
    return;
  }
  await_connection();
}

void FrontDoor::add(std::unique_ptr<transport::Connection> connection) {
  if (half_open_.size() >= kMostHalfOpen) {
    report(half_open_.front()->address(),
           "dropped for a newer connection: too many have not introduced themselves");
    half_open_.front()->drop();
  }
  const std::string address = connection->peer();
  auto half_open = std::make_shared<HalfOpen>(*this, connection->release_descriptor(),
                                              listener_->endpoint().scheme, address);
  half_open->place = half_open_.insert(half_open_.end(), half_open);
  half_open->read_hello(hello_timeout_);
}

void FrontDoor::admit(HalfOpen& half_open, Client client) {
  half_open.drop();
  admit_(std::move(client));
}

void FrontDoor::refuse(Client client, const Refusal& refusal) {
  auto half_open = std::make_shared<HalfOpen>(*this, client.descriptor, client.transport, client.address);
  half_open->place = half_open_.insert(half_open_.end(), half_open);
  half_open->refuse(refusal);
}

void FrontDoor::report(const std::string& address, const std::string& why) {
  const auto now = std::chrono::steady_clock::now();
  if (now - report_second_ >= std::chrono::seconds(1)) {
    if (reports_left_out_ > 0) log::warning("clients_refused_unlogged", {{"count", reports_left_out_}});
    report_second_ = now;
    reports_in_second_ = 0;
    reports_left_out_ = 0;
  }
  if (++reports_in_second_ > kReportsPerSecond) {
    ++reports_left_out_;
    return;
  }
  log::warning("client_refused", {{"client", address}, {"reason", why}});
}

}  // namespace gpupool::server
