// A tenant's bandwidth quota: bytes per second in each direction, shared by all its sessions. Transfers are
// charged after the fact; while a debt is outstanding nothing more is transferred, so the quota holds over
// any interval longer than kBurst, and TCP's flow control (or the credits of shm and rdma) throttles the
// client.
//
// The debt is stored in the tenant's shared account as the time at which it will be paid off. Any thread, any
// process.
#pragma once
#include <atomic>
#include <chrono>
#include <memory>

#include "protocol/transport/transport.h"
#include "server/worker/session/outbox.h"
#include "server/worker/session/session_start.h"

namespace gpupool::worker {

class Bandwidth {
 public:
  enum class Direction { to_device, to_host };
  // The transfer of this much time is allowed at once after an idle period.
  static constexpr std::chrono::milliseconds kBurst{20};

  explicit Bandwidth(Usage usage) : usage_(std::move(usage)) {}

  bool limited(Direction direction) const { return rate(direction) != 0; }
  void charge(Direction direction, uint64_t bytes);
  // Time until the next transfer is allowed; zero: no debt.
  std::chrono::nanoseconds debt(Direction direction) const;
  // Sleeps until the debt is paid off or the connection is over.
  void wait_for_debt(Direction direction, const Outbox& outbox) const;
  // Largest number of bytes to transfer at once, to keep a single debt small.
  size_t max_transfer(Direction direction) const;

 private:
  uint64_t rate(Direction direction) const;
  std::atomic<uint64_t>& paid_off(Direction direction) const;
  const Usage usage_;
};

// A connection whose bytes are charged to the quota. While in debt it neither sends nor receives, like a slow
// network; only messages of at most kAlways bytes are sent regardless, so that replies and signs of life are
// not delayed.
class MeteredConnection final : public transport::Connection {
 public:
  static constexpr size_t kAlways = 4096;

  MeteredConnection(std::unique_ptr<transport::Connection> inner, std::shared_ptr<Bandwidth> bandwidth)
      : inner_(std::move(inner)), bandwidth_(std::move(bandwidth)) {}

  Result<size_t> send_some(std::span<const iovec> buffers) override;
  Result<size_t> receive_some(std::span<std::byte> buffer) override;
  Result<Ready> wait(bool for_receive, bool for_send, transport::Deadline deadline) override;
  Patience patience() const override { return inner_->patience(); }
  void check_peer_alive() override { inner_->check_peer_alive(); }
  void interrupt() override;
  void close() override {
    closed_ = true;
    inner_->close();
  }
  void abandon() override {
    closed_ = true;
    inner_->abandon();
  }
  std::string peer() const override { return inner_->peer(); }
  int release_descriptor() override { return inner_->release_descriptor(); }
  Result<void> upgrade(transport::Side side, transport::Deadline deadline) override {
    return inner_->upgrade(side, deadline);
  }
  bool shares_memory() const override { return inner_->shares_memory(); }
  std::string carrier() const override { return inner_->carrier(); }
  transport::DirectMemory* direct_memory() override { return inner_->direct_memory(); }
  std::shared_ptr<transport::SessionResources> session_resources() const override {
    return inner_->session_resources();
  }
  void expect_replacement() override { inner_->expect_replacement(); }
  Result<void> send_descriptor(int descriptor, transport::Deadline deadline) override {
    return inner_->send_descriptor(descriptor, deadline);
  }
  Result<int> receive_descriptor(transport::Deadline deadline) override {
    return inner_->receive_descriptor(deadline);
  }

 private:
  // Zero once this side has closed the connection: nothing is transferred any more, and the next call reports
  // the end.
  std::chrono::nanoseconds debt(Bandwidth::Direction direction) const;
  const std::unique_ptr<transport::Connection> inner_;
  const std::shared_ptr<Bandwidth> bandwidth_;
  std::atomic<bool> closed_ = false;
  // Set until a wait() during a debt has ended because of it: at most one more wait() than asked for ends.
  std::atomic<bool> interrupted_ = false;
};

}  // namespace gpupool::worker
