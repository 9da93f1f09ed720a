// Tells the client which quota refused a request (wire/refusal.h). Any thread.
#pragma once
#include "server/quota/ledger.h"
#include "server/worker/session/outbox.h"
#include "server/worker/session/session_start.h"

namespace gpupool::worker {

// Sends the refusals that `ledger` and start.usage note to the client, if it takes them. Called before the
// session's first command; the arguments must outlive the session.
void send_refusals(Outbox& outbox, quota::Ledger& ledger, const SessionStart& start);

}  // namespace gpupool::worker
