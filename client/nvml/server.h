// One server of GPUPOOL as NVML's library sees it: a connection to poold that takes no worker, no GPU memory and no session
// (protocol/control/monitor.proto).
//
// One thread at a time (Library's mutex). A server that is lost is asked for again, ever more seldom, and is good again when it shows the
// same GPUs as before. No call waits for it longer than kPatience and the time that a connection may take.
#pragma once
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "client/lease/file.h"
#include "client/nvml/source.h"
#include "client/settings.h"
#include "protocol/transport/transport.h"

namespace gpupool::nvml {

class Server final : public Source {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kPatience{5'000};
  // Address and token, as of now: a lease's tokens are renewed.
  using Find = std::function<Result<client::LeasedServer>()>;

  static Result<std::unique_ptr<Server>> open(const client::Settings& settings, Find find);

  const std::string& name() const { return name_; }
  const std::vector<hello::Device>& devices() const override { return devices_; }
  int driver_version() const override { return driver_version_; }
  const monitor::State* look() override;  // null: the server is lost
  nvmlReturn_t unavailable() const override { return NVML_ERROR_GPU_IS_LOST; }
  Window window() override;
  // Closes the child's copy of the connection, which stays open in the parent.
  void abandon() override;

 private:
  Server(const client::Settings& settings, Find find) : settings_(settings), find_(std::move(find)) {}
  Result<void> connect();
  Result<monitor::State> ask();
  Result<monitor::State> ask_anew();
  void remember();

  client::Settings settings_;
  const Find find_;
  std::string name_;
  std::unique_ptr<transport::Connection> connection_;  // null: there is none
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
