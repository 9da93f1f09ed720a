// Handlers for memory that the client's program shares with this process: copies directly between it and the
// device.
#include <unistd.h>

#include "protocol/wire/copies.h"
#include "protocol/wire/rows.h"
#include "server/worker/copies/bandwidth.h"
#include "server/worker/handlers/commands.h"
#include "server/worker/handlers/copy_ranges.h"

namespace gpupool::worker::commands {
namespace {

constexpr std::chrono::milliseconds kLateDescriptor{1000};

CUresult copy_rows(const DeviceApi& api, const wire::CopyShared& copy, std::byte* host, CUstream stream) {
  if (copy.rows == 1) {
    return copy.to_device ? api.cuMemcpyHtoDAsync_v2(copy.device, host, copy.width, stream)
                          : api.cuMemcpyDtoHAsync_v2(host, copy.device, copy.width, stream);
  }
  CUDA_MEMCPY2D rows{};
  rows.srcMemoryType = copy.to_device ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
  rows.dstMemoryType = copy.to_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
  rows.srcHost = rows.dstHost = host;
  rows.srcDevice = rows.dstDevice = copy.device;
  rows.srcPitch = copy.to_device ? copy.host_pitch : copy.device_pitch;
  rows.dstPitch = copy.to_device ? copy.device_pitch : copy.host_pitch;
  rows.WidthInBytes = copy.width;
  rows.Height = copy.rows;
  return api.cuMemcpy2DAsync_v2(&rows, stream);
}

}  // namespace

Outcome share_host_memory(Session& session, Command& command) {
  const auto body = read_exact_body<wire::ShareHostMemory>(command);
  if (!body) return bad_body();
  transport::Connection& connection = *session.start.connection;
  if (!connection.shares_memory()) return CUDA_ERROR_NOT_SUPPORTED;
  const auto* const resumable = session.start.resumable;
  // The client sends the descriptor before the command. What cuts and mends connections may deliver it later,
  // because the command does not go through it.
  const auto patience = resumable ? kLateDescriptor : std::chrono::milliseconds(0);
  const auto descriptor = connection.receive_descriptor(transport::Clock::now() + patience);
  if (!descriptor) {
    // It was lost with the connection on which it was sent: the client uses memory that is not shared.
    if (resumable && (resumable->broken() || resumable->times_resumed() != 0))
      return CUDA_ERROR_NOT_SUPPORTED;
    return Outcome::malformed("share_host_memory without a file descriptor");
  }
  ContextState* const context = session.contexts.enter_named(command.header.context);
  uint64_t device = 0;
  const CUresult result = context ? session.shared_memory.add(*context, body->memory, *descriptor, body->size,
                                                              body->address, &device)
                                  : CUDA_ERROR_INVALID_CONTEXT;
  ::close(*descriptor);
  // The reply's result may be a deferred error of an earlier command; a body shows that this command
  // succeeded.
  if (result == CUDA_SUCCESS)
    wire::Writer(session.replies.body).put(wire::SharedHostMemoryAt{body->memory, device});
  return result;
}

Outcome release_host_memory(Session& session, Command& command) {
  const auto body = read_exact_body<wire::ReleaseHostMemory>(command);
  if (!body) return bad_body();
  session.shared_memory.release(body->memory);  // it may have been released with its context
  return CUDA_SUCCESS;
}

Outcome copy_shared(Session& session, Command& command) {
  auto copy = read_exact_body<wire::CopyShared>(command);
  if (!copy || copy->to_device > 1) return bad_body();
  session.contexts.enter_named(command.header.context);
  StreamState* const stream = session.table.use_stream(copy->stream);
  if (!stream) return session.contexts.current() ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_CONTEXT;
  const auto on_device = extent(copy->device_pitch, copy->width, copy->rows);
  const auto on_host = extent(copy->host_pitch, copy->width, copy->rows);
  if (!on_device || !on_host || !session.memory.owns(copy->device, *on_device))
    return CUDA_ERROR_INVALID_VALUE;
  std::byte* const host = session.shared_memory.find(*stream->context, copy->memory, copy->offset, *on_host);
  if (!host) return CUDA_ERROR_INVALID_VALUE;
  if (*on_host == 0) return CUDA_SUCCESS;
  session.contexts.enter(stream->context);
  auto& moved = copy->to_device ? session.counters.bytes_from_client : session.counters.bytes_to_client;
  moved.fetch_add(copy->width * copy->rows, std::memory_order_relaxed);
  if (Bandwidth* const bandwidth = session.start.bandwidth.get()) {
    const auto direction = copy->to_device ? Bandwidth::Direction::to_device : Bandwidth::Direction::to_host;
    bandwidth->charge(direction, copy->width * copy->rows);
    bandwidth->wait_for_debt(direction, session.outbox);
  }
  const auto kind =
      copy->to_device ? wire::TimelineKind::copy_to_device : wire::TimelineKind::copy_from_device;
  return session.timeline.measure(*stream, {kind, copy->width * copy->rows},
                                  [&] { return copy_rows(session.api, *copy, host, stream->stream); });
}

}  // namespace gpupool::worker::commands
