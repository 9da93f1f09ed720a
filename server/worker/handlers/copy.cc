// Handlers for copies between the client and the device through staging memory (staging.h, small_copies.h).
#include <algorithm>
#include <chrono>

#include "protocol/wire/copies.h"
#include "protocol/wire/rows.h"
#include "server/worker/copies/outgoing_copy.h"
#include "server/worker/handlers/commands.h"
#include "server/worker/handlers/copy_ranges.h"

namespace gpupool::worker::commands {
namespace {

// The executor itself polls for copies up to this size for a moment; handing them to a thread would take
// longer.
constexpr size_t kQuickBytes = 64u << 10;

CUresult copy_rows_in(const DeviceApi& api, const wire::CopyToDevice& copy, std::byte* from,
                      CUstream stream) {
  if (copy.rows == 1) return api.cuMemcpyHtoDAsync_v2(copy.destination, from, copy.width, stream);
  CUDA_MEMCPY2D rows{};
  rows.srcMemoryType = CU_MEMORYTYPE_HOST;
  rows.srcHost = from;
  rows.srcPitch = copy.width;
  rows.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  rows.dstDevice = copy.destination;
  rows.dstPitch = copy.pitch;
  rows.WidthInBytes = copy.width;
  rows.Height = copy.rows;
  return api.cuMemcpy2DAsync_v2(&rows, stream);
}

// Discards the payload, so that the next command is found.
Outcome refuse(Inbox& inbox, CUresult why) {
  std::byte drain[16 * 1024];
  while (inbox.body_left() != 0) {
    const std::span<std::byte> part(drain, std::min(sizeof drain, inbox.body_left()));
    if (!inbox.read_into(part)) return Outcome::lost();
  }
  return why;
}

// A piece of a copy to the client, as a rectangle in device memory.
struct Rectangle {
  uint64_t source;
  uint64_t width;
  uint64_t rows;
};

CUresult copy_rows_out(const DeviceApi& api, const Rectangle& piece, uint64_t pitch, std::byte* to,
                       CUstream stream) {
  if (piece.rows == 1) return api.cuMemcpyDtoHAsync_v2(to, piece.source, piece.width, stream);
  CUDA_MEMCPY2D rows{};
  rows.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  rows.srcDevice = piece.source;
  rows.srcPitch = pitch;
  rows.dstMemoryType = CU_MEMORYTYPE_HOST;
  rows.dstHost = to;
  rows.dstPitch = piece.width;
  rows.WidthInBytes = piece.width;
  rows.Height = piece.rows;
  return api.cuMemcpy2DAsync_v2(&rows, stream);
}

// Enqueues one piece: a copy from the device to staging memory, and an event that reports its completion.
CUresult enqueue(Copies& copies, StreamState& stream, const Rectangle& rectangle, uint64_t pitch,
                 CopyPiece piece) {
  ContextState& context = *stream.context;
  piece.size = static_cast<uint32_t>(rectangle.width * rectangle.rows);
  piece.chunk = copies.staging.acquire(context, piece.size);
  if (!piece.chunk) return copies.staging.refusal();
  CUresult result = copy_rows_out(copies.api, rectangle, pitch, piece.chunk->data, stream.stream);
  if (result == CUDA_SUCCESS) {
    piece.event = context.events->take();
    if (!piece.event) {
      // No event available: the piece is ready when pushed.
      result = copies.api.cuStreamSynchronize(stream.stream);
    } else if (result = copies.api.cuEventRecord(piece.event, stream.stream); result != CUDA_SUCCESS) {
      context.events->give(piece.event);
      copies.api.cuStreamSynchronize(stream.stream);
    }
  }
  if (result != CUDA_SUCCESS) {
    copies.staging.give_back(piece.chunk);
    return result;
  }
  copies.small.push(stream, piece);
  return CUDA_SUCCESS;
}

// Sends directly from device memory that the CPU can access, if the stream is idle. Returns whether it did.
bool send_at_once(Session& session, StreamState& stream, const wire::CopyFromDevice& copy,
                  uint64_t sequence) {
  const uint64_t bytes = copy.width * copy.rows;
  if (copy.rows != 1 || bytes > kLargePiece || !session.memory.is_cpu_accessible(copy.source, bytes))
    return false;
  if (!session.stream_work.is_idle(stream)) return false;
  const auto span = session.copies.begin_span(stream, false, bytes);
  const wire::DeviceData where{0};
  session.outbox.send(wire::MessageKind::device_data, 0, sequence, std::as_bytes(std::span(&where, 1)),
                      {reinterpret_cast<const std::byte*>(copy.source), bytes});
  if (span) span->finish();
  session.stream_work.fetch_output(stream);
  session.replies.publish();
  return true;
}

CUresult enqueue_all(Copies& copies, StreamState& stream, const wire::CopyFromDevice& copy,
                     uint64_t sequence) {
  uint64_t offset = 0;
  if (copy.width > kLargePiece) {
    for (uint64_t row = 0; row < copy.rows; ++row) {
      for (uint64_t start = 0; start < copy.width; start += kLargePiece) {
        const uint64_t part = std::min<uint64_t>(kLargePiece, copy.width - start);
        const Rectangle rectangle{copy.source + row * copy.pitch + start, part, 1};
        const CUresult result =
            enqueue(copies, stream, rectangle, copy.pitch, {.sequence = sequence, .offset = offset});
        if (result != CUDA_SUCCESS) return result;
        offset += part;
        copies.small.serve(stream);
      }
    }
    return CUDA_SUCCESS;
  }
  const uint64_t rows_per_piece = kLargePiece / copy.width;
  for (uint64_t row = 0; row < copy.rows; row += rows_per_piece) {
    const Rectangle rectangle{copy.source + row * copy.pitch, copy.width,
                              std::min(rows_per_piece, copy.rows - row)};
    const CUresult result =
        enqueue(copies, stream, rectangle, copy.pitch, {.sequence = sequence, .offset = offset});
    if (result != CUDA_SUCCESS) return result;
    offset += rectangle.width * rectangle.rows;
    if (copy.rows > rows_per_piece) copies.small.serve(stream);
  }
  return CUDA_SUCCESS;
}

}  // namespace

Outcome copy_to_device(Session& session, Command& command) {
  const auto fixed = session.inbox.body(std::min(sizeof(wire::CopyToDevice), session.inbox.body_left()));
  if (!fixed) return Outcome::lost();
  wire::Reader reader(*fixed);
  auto copy = reader.get<wire::CopyToDevice>();
  if (!reader.finished()) return bad_body();
  const uint64_t bytes = uint64_t{copy.width} * copy.rows;
  if ((copy.flags & ~(wire::kCopyOrdersStreams | wire::kCopyPassesOthers)) != 0) return bad_body();
  if (bytes > wire::kBulkChunkBytes || bytes != session.inbox.body_left()) return bad_body();
  if (bytes == 0) return CUDA_SUCCESS;
  wire::join_rows(copy.width, copy.rows, copy.pitch);
  const auto touched = extent(copy.pitch, copy.width, copy.rows);
  session.contexts.enter_named(command.header.context);
  const bool passes = (copy.flags & wire::kCopyPassesOthers) != 0;
  StreamState* const stream =
      passes ? session.table.find_stream(copy.stream) : session.table.use_stream(copy.stream);
  if (stream && passes) session.contexts.note_use_unordered(*stream);
  if (!stream) {
    return refuse(session.inbox,
                  session.contexts.current() ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_CONTEXT);
  }
  if (!touched || !session.memory.owns(copy.destination, *touched))
    return refuse(session.inbox, CUDA_ERROR_INVALID_VALUE);
  session.contexts.enter(stream->context);
  const auto enqueued = [&](CUresult result) {
    if (result == CUDA_SUCCESS && (copy.flags & wire::kCopyOrdersStreams) != 0)
      session.contexts.order_all_after(*stream);
    return result;
  };
  if (bytes > Staging::kSlabPart && copy.rows == 1 &&
      session.memory.is_cpu_accessible(copy.destination, bytes) && session.stream_work.is_idle(*stream)) {
    // The stream is idle, and the copy ends before any other command is executed.
    const auto span = session.copies.begin_span(*stream, true, bytes);
    if (!session.inbox.read_into({reinterpret_cast<std::byte*>(copy.destination), bytes}))
      return Outcome::lost();
    if (span) span->finish();
    return CUDA_SUCCESS;
  }
  const auto copy_in = [&](std::byte* from) {
    return session.timeline.measure(*stream, {wire::TimelineKind::copy_to_device, bytes},
                                    [&] { return copy_rows_in(session.api, copy, from, stream->stream); });
  };
  if (bytes <= Staging::kSlabPart) {
    std::byte* const place = session.copies.staging.slab_place(*stream, bytes);
    if (!place) return refuse(session.inbox, session.copies.staging.refusal());
    if (!session.inbox.read_into({place, bytes})) return Outcome::lost();
    return enqueued(copy_in(place));
  }
  StagingChunk* const chunk = session.copies.staging.acquire(*stream->context, bytes);
  if (!chunk) return refuse(session.inbox, session.copies.staging.refusal());
  if (!session.inbox.read_into({chunk->data, bytes})) {
    session.copies.staging.give_back(chunk);
    return Outcome::lost();
  }
  const CUresult result = copy_in(chunk->data);
  if (result == CUDA_SUCCESS)
    session.copies.staging.keep_until(chunk, *stream);
  else
    session.copies.staging.give_back(chunk);
  return enqueued(result);
}

Outcome copy_from_device(Session& session, Command& command) {
  auto copy = read_exact_body<wire::CopyFromDevice>(command);
  if (!copy) return bad_body();
  session.contexts.enter_named(command.header.context);
  const uint64_t sequence = command.header.sequence;
  // A reply ends every copy. If the command does not want a reply, its error is also deferred to a later
  // reply.
  const auto fail = [&](CUresult why) -> Outcome {
    if (command.wants_reply()) return why;
    session.outbox.send(wire::MessageKind::reply, why, sequence);
    return why;
  };
  StreamState* const stream = session.table.use_stream(copy->stream);
  if (!stream)
    return fail(session.contexts.current() ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_CONTEXT);
  const auto touched = extent(copy->pitch, copy->width, copy->rows);
  if (!touched || !session.memory.owns(copy->source, *touched)) return fail(CUDA_ERROR_INVALID_VALUE);
  if (*touched == 0) return fail(CUDA_SUCCESS);
  wire::join_rows(copy->width, copy->rows, copy->pitch);
  if (session.copies.small.full()) return fail(CUDA_ERROR_OUT_OF_MEMORY);
  session.contexts.enter(stream->context);
  if (send_at_once(session, *stream, *copy, sequence)) {
    const CUresult result = command.wants_reply() ? session.replies.take_deferred() : CUDA_SUCCESS;
    session.memory.collect();
    session.outbox.send(wire::MessageKind::reply, result, sequence);
    return Outcome::parked();
  }
  // Copies above 1 MiB are sent by another thread.
  const bool in_pieces = copy->rows == 1 || copy->width <= kLargePiece;
  if (copy->width * copy->rows > kLargePiece && in_pieces) {
    const DeviceRows rows{copy->source, copy->pitch, copy->width, copy->rows};
    const CUresult deferred = command.wants_reply() ? session.replies.take_deferred() : CUDA_SUCCESS;
    const CUresult result =
        OutgoingCopy::start(session.copies, {OutgoingCopy::Way::messages}, *stream, rows, sequence, deferred);
    return result == CUDA_SUCCESS ? Outcome::parked() : fail(result);
  }
  CopyPiece reply{.sequence = sequence};
  reply.result =
      session.timeline.measure(*stream, {wire::TimelineKind::copy_from_device, copy->width * copy->rows},
                               [&] { return enqueue_all(session.copies, *stream, *copy, sequence); });
  if (command.wants_reply()) {
    if (reply.result == CUDA_SUCCESS) reply.result = session.replies.take_deferred();
  } else {
    session.replies.defer(reply.result);
  }
  session.copies.small.push(*stream, reply);
  if (copy->width * copy->rows <= kQuickBytes) {
    const auto stop = std::chrono::steady_clock::now() + session.spin_time.limit();
    do {
      session.copies.small.flush();
      if (session.copies.small.idle()) return Outcome::parked();
    } while (!session.inbox.has_input() && std::chrono::steady_clock::now() < stop);
  }
  session.copies.small.serve(*stream);
  return Outcome::parked();
}

}  // namespace gpupool::worker::commands
