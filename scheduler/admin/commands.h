// pool-admin's commands for one poold. Each prints to stdout and returns the exit status, or throws Failure.
// Called by command/pool_admin.cc; one thread.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "scheduler/admin/poold.h"

namespace gpupool::admin {

Exit show_gpus(PooldClient& poold, bool json);
Exit show_sessions(PooldClient& poold, bool json, const std::string& tenant);
Exit show_tenants(PooldClient& poold, bool json);
Exit show_quotas(PooldClient& poold, bool json, const std::string& tenant);  // empty: all tenants
// Changes the limits of GPU `gpu`, of every GPU if it is empty. With a GPU, the word `default` resets its
// limits to those of every GPU.
Exit set_quota(PooldClient& poold, bool json, const std::string& tenant, const std::string& gpu,
               std::vector<std::string> words);
Exit kill_sessions(PooldClient& poold, bool json, const std::vector<std::string>& sessions,
                   const std::string& reason);
// Prints the state of a session for debugging. Returns kExitRefused if its worker does not answer.
Exit show_dump(PooldClient& poold, bool json, const std::string& session);
// Asks the session's client to migrate it to the server at `to`, and waits at most `timeout` for the result.
// Returns kExitRefused if it has not migrated.
Exit migrate_session(PooldClient& poold, bool json, const std::string& session, const std::string& to,
                     std::chrono::seconds timeout);
// Has poold replace its program by the installed one, and waits until that one serves. `move_workers`: then
// asks the sessions' clients to move them to workers of that program. Returns kExitRefused if one stays.
Exit upgrade_poold(PooldClient& poold, bool json, bool move_workers);
// Has the session's client suspend it, to poold's folder or to host memory. `timeout` and exit status as
// above.
Exit suspend_session(PooldClient& poold, bool json, const std::string& session, bool to_disk, bool encrypt,
                     std::chrono::seconds timeout);
// Resumes a suspended session: `session` here or at another poold, or else the one of `file`.
struct Resumption {
  std::string session, at, file;
};
Exit resume_session(PooldClient& poold, bool json, const Resumption& resumption,
                    std::chrono::seconds timeout);
Exit show_health(PooldClient& poold, bool json);

}  // namespace gpupool::admin
