#include "client/copies/copy_route.h"

namespace gpupool::client {
namespace {

using Path = CopyRoute::Path;

// Kernels use memory that the server maps in the order of their streams, which a copy over the connection, in
// a stream of another device, does not preserve. So such a copy waits before and after.
bool mapped_elsewhere(const CopyFacts& facts) {
  return facts.other_device && facts.mapped;
}

CopyRoute host_device(const CopyFacts& facts, Path path) {
  CopyRoute route{.path = path};
  route.side_stream = facts.other_device;
  route.stream_first = mapped_elsewhere(facts);
  route.join = facts.other_device && !facts.synchronous;
  return route;
}

CopyRoute to_device(const CopyFacts& facts) {
  const bool waits = facts.synchronous || mapped_elsewhere(facts);
  const bool completes = waits && facts.must_complete;
  // A small synchronous copy is sent with the next commands; the caller does not wait.
  const bool deferred = waits && !facts.written && !completes && travels_inline(facts.bytes);
  if (facts.mapped && !facts.other_device && !deferred)
    return {.path = Path::mapped, .wait = facts.synchronous};
  const bool unsettled = facts.written || facts.source_pending;
  const bool kept = facts.pinned && !waits;
  CopyRoute route = host_device(facts, Path::sent);
  route.source_first = unsettled && waits;
  route.source = kept ? Source::kept : Source::reusable;
  route.wait = completes;
  if (waits && !completes) route.order = CopyOrder::before_all;
  if (unsettled && kept) {
    route.path = Path::sent_late;
    route.order = CopyOrder::passes_others;
  }
  return route;
}

CopyRoute from_device(const CopyFacts& facts) {
  if (facts.mapped && !facts.other_device) return {.path = Path::mapped, .wait = facts.synchronous};
  CopyRoute route = host_device(facts, Path::received);
  route.fetch_changes = facts.synchronous || mapped_elsewhere(facts);
  // Pageable memory may be freed when the call returns, so the copy is waited for, as CUDA does.
  route.wait = route.fetch_changes || !facts.pinned;
  return route;
}

// As with CUDA, a synchronous copy between two devices overlaps with no other work of either. An asynchronous
// one in a legacy stream does so as far as the legacy streams of both devices order their work.
bool orders_legacy_streams(const CopyFacts& facts) {
  return facts.direction == CopyDirection::on_devices && facts.two_devices && facts.legacy_stream &&
         !facts.synchronous;
}

CopyRoute on_server(const CopyFacts& facts) {
  CopyRoute route{.path = Path::on_server};
  route.contexts_first = facts.synchronous && facts.two_devices;
  // On return the program may change the memory that the copy reads.
  route.wait = facts.synchronous && (facts.two_devices || facts.reads_mirror);
  route.legacy_streams = orders_legacy_streams(facts);
  return route;
}

}  // namespace

CopyRoute choose_route(const CopyFacts& facts) {
  if (facts.capturing) return {.path = facts.synchronous ? Path::refused : Path::recorded};
  if (facts.between_servers) {
    // Pageable memory may be freed when the call returns.
    return {.path = Path::between_servers,
            .wait = facts.synchronous || !facts.pinned,
            .legacy_streams = orders_legacy_streams(facts)};
  }
  switch (facts.direction) {
    case CopyDirection::in_host: break;
    case CopyDirection::to_device: return to_device(facts);
    case CopyDirection::from_device: return from_device(facts);
    case CopyDirection::on_devices: return on_server(facts);
  }
  return {.path = Path::in_host, .source_first = true, .wait = true};
}

DataPath choose_data_path(const DataFacts& facts) {
  if (facts.direct && facts.packed && facts.bytes >= kDirectFrom) return DataPath::direct;
  if (facts.bulk && !facts.passes_others && facts.bytes >= (facts.waits ? kWaitingBulkFrom : kBulkFrom))
    return DataPath::bulk;
  return DataPath::commands;
}

}  // namespace gpupool::client
