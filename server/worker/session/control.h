// The worker's end of the control socket to poold while a session runs (server/handover/handover.h). One
// thread receives poold's messages and passes each to the handler of its kind. All functions may be called
// from any thread.
#pragma once
#include <functional>
#include <map>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

#include "server/handover/handover.h"

namespace gpupool::worker {

class Control {
 public:
  // Receives ownership of the message's descriptor. Runs on the control thread: must return soon, and must
  // not call handle().
  using Handler = std::function<void(server::ControlMessage)>;

  // The caller keeps `socket`. `poold_gone` is called on the control thread when poold has closed its end.
  Control(int socket, std::function<void()> poold_gone);
  ~Control();
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  // Sets the handler of a kind. Messages that arrived earlier are passed to it at once (at most 64 of all
  // kinds are kept until then). With a null handler, later messages are dropped, and the previous handler is
  // not running any more when the call returns.
  void handle(server::ControlKind kind, Handler handler);
  // Sends a message to poold. Never blocks.
  template <server::ControlKind kind>
  Result<void> send(const server::ControlBody<kind>& body = {}, std::string_view payload = {}) const {
    return server::send_control<kind>(socket_, body, payload);
  }
  // A descriptor that becomes readable when poold has closed its end.
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
