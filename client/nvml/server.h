// One server of GPUPOOL, as a source for libnvidia-ml.so.1: a connection to poold without worker, GPU memory
// or session (protocol/control/monitor.proto).
//
// Not thread-safe: guarded by Library's mutex. A lost server is retried at growing intervals (1 s to 30 s),
// and accepted again if it reports the same GPUs as before. A call blocks for at most four times kTimeout:
// question, connecting, hello, and the question once more.
#pragma once
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "client/lease/file.h"
#include "client/process/settings.h"
#include "protocol/nvml/source.h"
#include "protocol/transport/transport.h"

namespace gpupool::nvml {

class Server final : public Source {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kTimeout{5'000};
  // Returns the server's address and current token (the tokens of a lease are renewed).
  using Find = std::function<Result<client::LeasedServer>()>;

  static Result<std::unique_ptr<Server>> open(const client::Settings& settings, Find find);

  const std::string& name() const { return name_; }
  const std::vector<hello::Device>& devices() const override { return devices_; }
  int driver_version() const override { return driver_version_; }
  const monitor::State* look() override;  // null: the server is lost
  nvmlReturn_t unavailable() const override { return NVML_ERROR_GPU_IS_LOST; }
  Window window() override;
  // In a forked child: closes its copy of the connection, which stays open in the parent.
  void abandon() override;

 private:
  Server(const client::Settings& settings, Find find) : settings_(settings), find_(std::move(find)) {}
  Result<void> connect();
  Result<monitor::State> query();
  Result<monitor::State> query_reconnecting();
  void add_sample();

  client::Settings settings_;
  const Find find_;
  std::string name_;
  std::unique_ptr<transport::Connection> connection_;  // null: not connected
  std::vector<hello::Device> devices_;
  int driver_version_ = 0;
  std::optional<monitor::State> state_;
  Clock::time_point looked_{};
  std::deque<monitor::State> history_;  // oldest first, for window()
  bool lost_ = false;
  Clock::time_point try_again_{};
  std::chrono::milliseconds pause_{};
};

}  // namespace gpupool::nvml
