// The worker's end of the control socket while its session runs (server/handover.h): one thread receives what poold
// sends and gives each message to the handler of its kind. Any thread.
#pragma once
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "server/handover.h"

namespace gpupool::worker {

class Control {
 public:
  // Owns the message's descriptor. Runs on the control thread: must be brief, and must not call handle().
  using Handler = std::function<void(server::ControlMessage)>;

  // `socket` stays the caller's; `poold_gone` is called on the control thread when poold has closed its end.
  Control(int socket, std::function<void()> poold_gone);
  ~Control();
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  // Messages that came before their handler are given to it now; the oldest few of them are kept. A null handler drops
  // what comes from now on; when the call returns, the former one is not at work any more.
  void handle(server::ControlKind kind, Handler handler);
  // To poold; never blocks.
  Result<void> send(const server::ControlHeader& header, const std::string& payload = {}) const;
  // Readable as soon as poold has closed its end.
  int end_descriptor() const { return ended_; }

 private:
  void run();
  void dispatch(server::ControlMessage message);

  const int socket_;
  const std::function<void()> poold_gone_;
  const int ended_;
  std::mutex mutex_;  // held while a handler runs
  std::map<server::ControlKind, Handler> handlers_;
  std::vector<server::ControlMessage> early_;
  bool destroyed_ = false;
  std::thread thread_;
};

}  // namespace gpupool::worker
