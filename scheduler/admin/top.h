// `pool-admin top`: what goes on in a poold, again and again.
#pragma once
#include "scheduler/admin/live_view.h"
#include "scheduler/admin/poold.h"

namespace gpupool::admin {

// On a terminal it draws in place, else it prints one snapshot after the other. Throws Failure when poold ends.
void run_top(PooldClient& poold, const TopSignals& signals, const TopOptions& options);

// One picture: rates are since `before`, which may be null.
std::string picture_of(const Snapshot& now, const Snapshot* before, size_t width);

}  // namespace gpupool::admin
