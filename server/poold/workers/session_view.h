// A session as administration, monitors and the audit see it. poold's thread.
#pragma once
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <string>

#include "protocol/wire/checkpoint.h"
#include "server/poold/workers/breaks.h"
#include "server/poold/workers/client.h"
#include "server/poold/workers/migrations.h"
#include "server/quota/session_page.h"

namespace gpupool::server {

// A running session as administration sees it. Valid only during the callback that receives it.
struct SessionView {
  uint64_t number;
  pid_t worker;
  const std::string& version;  // of the worker's program
  bool inherited;              // the worker was started before poold's last upgrade
  std::chrono::system_clock::time_point started;
  std::chrono::nanoseconds age;
  const Client& client;
  const quota::SessionPage& page;  // untrusted: the worker may write anything
  bool ending;                     // end_session() was called
  wire::ProcessState state;
  const std::string& locked_by;  // program that locked it or is locking it, as its client reported
  const Breaks& breaks;
  Migrations::Open moving;
  const char* state_change;  // name of the pending state change ("lock", ...); empty: none
};

}  // namespace gpupool::server
