#include "protocol/wire/migration.h"

#include "server/worker/handlers/commands.h"

namespace gpupool::worker::commands {

Outcome end_migration(Session& session, Command& command) {
  const auto answer = command.body.get<wire::EndMigration>();
  const std::string_view reason = answer.migrated == 0 ? command.body.get_text() : std::string_view();
  if (!command.body.finished()) return bad_body();
  if (!session.migration_requests.answered(answer, reason))
    return Outcome::malformed("it answers a request to migrate that was not made");
  return CUDA_SUCCESS;
}

}  // namespace gpupool::worker::commands
