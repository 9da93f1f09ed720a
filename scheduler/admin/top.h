// `pool-admin top` for a poold: GPUs and sessions with their rates, updated continuously (live_view.h).
#pragma once
#include "scheduler/admin/live_view.h"
#include "scheduler/admin/poold.h"

namespace gpupool::admin {

// Runs until options.count, q or a signal. Throws Failure when poold ends.
void run_top(PooldClient& poold, const TopSignals& signals, const TopOptions& options);

// Formats one snapshot. Rates are computed since `before`, which may be null.
std::string render_snapshot(const Snapshot& now, const Snapshot* before, size_t width);

}  // namespace gpupool::admin
