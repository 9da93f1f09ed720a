// Asks workers' control threads what their sessions are doing (worker/session/dump.h). A worker has at most
// one open question, shared by all callers, so a worker that does not read is sent no more. poold's thread.
#pragma once
#include <asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "server/handover/handover.h"
#include "server/poold/upgrade/state.pb.h"
#include "server/poold/workers/answer_timer.h"
#include "server/poold/workers/session_view.h"
#include "server/poold/workers/workers.h"

namespace gpupool::server {

class Dumps {
 public:
  using Dumped = std::function<void(const SessionView&, const Result<std::string>&)>;
  using ViewOf = std::function<SessionView(const Worker&)>;

  Dumps(asio::io_context& context, Workers& workers, ViewOf view_of)
      : context_(context), workers_(workers), view_of_(std::move(view_of)) {}
  Dumps(const Dumps&) = delete;
  Dumps& operator=(const Dumps&) = delete;

  // Calls `answered` once within 2 s, possibly before returning, with a serialized admin::WorkerDump or an
  // error. ErrorCode::unavailable: there is no such session, and `answered` is not called.
  Result<void> ask(uint64_t session, Dumped answered);
  // Takes a worker's answer. Returns false if the worker was ended because it had no question.
  bool answered(Worker& worker, const ControlMessage& message);
  void session_ended(const Worker& worker);
  // Ends the timeouts. Open questions are answered by session_ended().
  void stop();
  // For this process's next program (server/poold/upgrade). It drops answers to restored questions.
  void save(upgrade::Pool& to) const { to.set_next_dump(next_question_); }
  void save(uint64_t session, upgrade::Session& to) const;
  void restore(const upgrade::Pool& from) { next_question_ = from.next_dump(); }
  void restore(uint64_t session, const upgrade::Session& from);

 private:
  struct Dump {
    explicit Dump(asio::io_context& context) : deadline(context) {}
    uint64_t question = 0;  // number of the open question; 0: none
    std::vector<Dumped> waiting;
    AnswerTimer deadline;
  };

  void answer(Dump& dump, const Worker& worker, const Result<std::string>& payload);

  asio::io_context& context_;
  Workers& workers_;
  const ViewOf view_of_;
  std::map<uint64_t, std::shared_ptr<Dump>> dumps_;  // by session; timeouts hold them, too
  uint64_t next_question_ = 1;
};

}  // namespace gpupool::server
