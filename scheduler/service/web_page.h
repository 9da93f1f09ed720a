// The web page of pool-scheduler: its files, the pool's state, the history and the events, and who may read
// them. Owned by Daemon; the engine's thread.
//
// The files are for everyone. State, history and events have names of tenants, programs and hosts: where the
// scheduler's callers have tokens, they need an operator's, as "Authorization: Bearer TOKEN". Without tokens
// they need a `Host` that no other site's page can have (DNS rebinding): localhost, a numeric address, or one
// of
// --web-host.
#pragma once
#include <asio/steady_timer.hpp>
#include <optional>
#include <string>
#include <vector>

#include "common/http/http_request.h"
#include "common/http/http_server.h"
#include "scheduler/service/engine.h"
#include "scheduler/web/events.h"
#include "scheduler/web/gpu_utilization.h"
#include "scheduler/web/history.h"

namespace gpupool::scheduler {

class WebPage {
 public:
  WebPage(Engine& engine, std::vector<std::string> hosts);
  // Begins to note history and events.
  void start();
  void stop() { timer_.cancel(); }
  // Returns nothing if the page has no such path.
  std::optional<HttpResponse> answer(const std::string& path);
  // Returns 401, 403 or 421 if the request may not read what its path names. `peer`: HOST:PORT.
  std::optional<HttpResponse> refuse(const HttpRequest& request, const std::string& peer);

 private:
  pool::PoolSnapshot noted_snapshot();
  void note_history();

  Engine& engine_;
  const std::vector<std::string> hosts_;
  asio::steady_timer timer_;
  pool::GpuUtilization utilization_;
  pool::History history_;
  pool::Events events_;
};

}  // namespace gpupool::scheduler
