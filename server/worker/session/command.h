// A command of the client, and the outcome of executing it. Executor's thread.
#pragma once
#include "protocol/driver/cuda_header.h"
#include "protocol/wire/frame.h"
#include "protocol/wire/reader.h"

namespace gpupool::worker {

struct Command {
  wire::CommandHeader header;
  wire::Reader body{{}};  // empty for commands that read their body from the inbox
  bool wants_reply() const { return (header.flags & wire::kWantsReply) != 0; }
};

// Result of executing a command.
struct Outcome {
  enum class Next { reply, parked, malformed, lost };
  Next next = Next::reply;
  CUresult result = CUDA_SUCCESS;
  const char* why = "";  // malformed: the reason, for the message to the client

  Outcome(CUresult result) : result(result) {}
  // The reply was sent already, or a wait thread will send it.
  static Outcome parked() { return Outcome(Next::parked, ""); }
  static Outcome malformed(const char* why) { return Outcome(Next::malformed, why); }
  static Outcome lost() { return Outcome(Next::lost, ""); }  // the connection broke within the command

 private:
  Outcome(Next next, const char* why) : next(next), why(why) {}
};

// Returns the name of a row or command, such as "cuMemsetD8Async" or "launch"; "none" or "?" for an unknown
// id. In executor.cc, which has the table of handlers.
const char* command_name(uint16_t id);

}  // namespace gpupool::worker
