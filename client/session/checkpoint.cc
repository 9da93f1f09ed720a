#include "client/session/checkpoint.h"

#include <algorithm>
#include <utility>

#include "client/process/identity.h"
#include "client/process/log.h"
#include "client/session/checkpoint_exchange.h"
#include "client/session/poold_connection.h"

namespace gpupool::client {
namespace {

using transport::Clock;
using wire::CheckpointAction;
using wire::ProcessState;

constexpr std::chrono::milliseconds kQueryTimeout{5'000};

CheckpointAction opposite_of(CheckpointAction action) {
  switch (action) {
    case CheckpointAction::lock: return CheckpointAction::unlock;
    case CheckpointAction::checkpoint: return CheckpointAction::restore;
    case CheckpointAction::restore: return CheckpointAction::checkpoint;
    default: return CheckpointAction::lock;
  }
}

}  // namespace

CUresult CheckpointedProcess::find(const Settings& settings, const std::vector<LeasedServer>& servers,
                                   int pid, std::optional<CheckpointedProcess>* found) {
  CheckpointedProcess process(pid, settings.dead_peer_timeout);
  for (const LeasedServer& leased : servers) {
    hello::Hello hello = introduction();
    hello.checkpoint = true;
    hello::HelloReply reply;
    auto connection = connect_to_poold(settings, leased, std::move(hello), kQueryTimeout, &reply);
    Server server{.name = leased.endpoint.text(), .connection = nullptr, .sessions = {}};
    if (!connection) {
      log_error("checkpoint: cannot query server %s about process %d: %s", server.name.c_str(), pid,
                connection.error().message.c_str());
      return CUDA_ERROR_DEVICE_UNAVAILABLE;
    }
    server.connection = std::move(*connection);
    std::vector<wire::ProcessSession> sessions;
    const CUresult asked = process.query(server, {.action = CheckpointAction::find, .pid = pid}, &sessions);
    if (asked != CUDA_SUCCESS) return asked;
    server.sessions = std::move(sessions);
    if (!server.sessions.empty()) process.servers_.push_back(std::move(server));
  }
  if (process.servers_.empty()) return CUDA_ERROR_INVALID_VALUE;
  found->emplace(std::move(process));
  return CUDA_SUCCESS;
}

CUresult CheckpointedProcess::query(Server& server, const wire::CheckpointQuestion& question,
                                    std::vector<wire::ProcessSession>* sessions) const {
  const auto answer = exchange_checkpoint(*server.connection, question, dead_peer_timeout_, sessions);
  if (answer) return static_cast<CUresult>(answer->result);
  log_error("checkpoint: lost the connection to server %s during a query about process %d: %s",
            server.name.c_str(), pid_, answer.error().message.c_str());
  return CUDA_ERROR_DEVICE_UNAVAILABLE;
}

ProcessState CheckpointedProcess::state() const {
  ProcessState least = ProcessState::failed;
  for (const Server& server : servers_) {
    for (const auto& session : server.sessions) least = std::min(least, session.state);
  }
  return least;
}

CUresult CheckpointedProcess::apply(CheckpointAction action, unsigned timeout_ms) {
  const ProcessState before = wire::state_before(action);
  const auto stop = Clock::now() + std::chrono::milliseconds(timeout_ms);
  for (const Server& server : servers_) {
    for (const auto& session : server.sessions) {
      if (session.state != before) return CUDA_ERROR_ILLEGAL_STATE;
    }
  }
  CUresult result = CUDA_SUCCESS;
  std::vector<wire::ProcessSession> none;
  std::vector<std::pair<Server*, wire::ProcessSession*>> done;
  for (Server& server : servers_) {
    for (auto& session : server.sessions) {
      if (result != CUDA_SUCCESS) break;
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(stop - Clock::now()).count();
      const auto patience = timeout_ms == 0 ? 0 : static_cast<uint32_t>(std::max<int64_t>(1, left));
      result = query(
          server, {.action = action, .timeout_ms = patience, .pid = pid_, .session = session.session}, &none);
      if (result == CUDA_SUCCESS) done.emplace_back(&server, &session);
    }
  }
  for (auto& [server, session] : done) {
    if (result == CUDA_SUCCESS)
      session->state = wire::state_after(action);
    else
      (void)query(*server,
                  {.action = opposite_of(action), .timeout_ms = 0, .pid = pid_, .session = session->session},
                  &none);
  }
  return result;
}

}  // namespace gpupool::client
