// Questions of workers for memory and events that sessions of one tenant share
// (worker/sharing/exported_handles.h): passes one worker's question to another worker, and the answer back.
// Keeps only the open question and the asking worker's end of the socket pair that carries the memory's
// descriptor. The owning worker checks the secret in the name. poold's thread.
//
// The functions for messages return false if the worker that sent the message was ended.
#pragma once
#include <cstdint>
#include <map>

#include "server/handover/handover.h"
#include "server/poold/workers/workers.h"

namespace gpupool::server {

class Shares {
 public:
  explicit Shares(Workers& workers) : workers_(workers) {}
  ~Shares();
  Shares(const Shares&) = delete;
  Shares& operator=(const Shares&) = delete;

  bool ask(Worker& asking, const packet::ShareWanted& wanted);
  bool found(Worker& owner, const packet::ShareFound& found);
  bool missing(Worker& owner, const packet::ShareMissing& missing);
  // Drops the session's question, and answers those that other sessions have asked it.
  void session_ended(const Worker& gone);
  bool has_questions() const { return !questions_.empty(); }
  // Answers that nothing was found.
  void close_questions();

 private:
  // A session has at most one.
  struct Question {
    uint64_t owner = 0;  // the session that is asked
    uint64_t request = 0;
    int end = -1;  // the asking worker's end of the pair that carries the descriptor
  };

  bool answer_missing(Worker& asking, uint64_t request);
  Worker* find_asking(const Worker& owner, uint64_t requester, uint64_t request) const;
  void forget(uint64_t asking);

  Workers& workers_;
  std::map<uint64_t, Question> questions_;  // by the asking session
};

}  // namespace gpupool::server
