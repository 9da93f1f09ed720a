#include "client/copies/transfer.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "client/copies/bulk_parts.h"
#include "client/memory/host_memory.h"
#include "client/session/call.h"
#include "client/streams/host_function.h"
#include "client/timeline/timeline.h"
#include "protocol/wire/copies.h"

namespace gpupool::client {
namespace {

constexpr uint16_t id_of(wire::Command command) {
  return static_cast<uint16_t>(command);
}

CUresult send_piece(Session& session, Context& context, const wire::CopyToDevice& head,
                    const std::byte* bytes) {
  const uint64_t size = uint64_t{head.width} * head.rows;
  if (travels_inline(size)) {
    return session.post(id_of(wire::Command::copy_to_device), &context, [&](wire::Writer& writer) {
      writer.put(head);
      writer.put_bytes(bytes, size);
    });
  }
  if (const CUresult early = session.before_call(&context); early != CUDA_SUCCESS) return early;
  const iovec payload{const_cast<std::byte*>(bytes), size};
  const bool sent =
      session.queue().send_bulk(id_of(wire::Command::copy_to_device), 0, Session::handle_of(&context), head,
                                {&payload, 1}, [](uint64_t) {});
  return sent ? CUDA_SUCCESS : Session::failure();
}

template <class Body>
CUresult fetch(Session& session, Context& context, wire::Command command, const Body& body, Transfer transfer,
               bool wait) {
  if (const CUresult early = session.before_call(&context); early != CUDA_SUCCESS) return early;
  transfer.background = !wait;
  Waiter waiter{.id = id_of(command)};
  // No thread waits for a background copy's reply: without the flag its error is returned with the next
  // awaited reply.
  const uint16_t flags = wait ? wire::kWantsReply : uint16_t{0};
  session.queue().append(
      id_of(command), flags, Session::handle_of(&context), [&](wire::Writer& writer) { writer.put(body); },
      [&](uint64_t sequence) {
        session.receiver().expect_transfer(sequence, transfer);
        waiter.sequence = sequence;
        if (wait) session.receiver().expect(waiter);
      });
  if (!wait) {
    session.queue().wake_flusher();
    return CUDA_SUCCESS;
  }
  session.queue().flush();
  wire::Buffer reply;
  return session.finish_call(&context, waiter, reply);
}

wire::BulkCopy bulk_copy(CUstream stream, uint64_t device, const Rows& rows, const BulkPart& part,
                         uint32_t flags) {
  return {cuda::handle_bits(stream),
          device + part.device,
          part.rows == 1 ? part.width : rows.device_pitch,
          part.width,
          part.rows,
          flags,
          0};
}

CUresult bulk_to_device(Session& session, Context& context, CUstream stream, uint64_t to,
                        const std::byte* from, const Rows& rows, uint32_t flags, uint32_t last_flags,
                        Source source) {
  std::vector<std::shared_ptr<Upload>> uploads;
  const CUresult result = for_each_bulk_part(rows, [&](const BulkPart& part, bool last) -> CUresult {
    if (const CUresult early = session.before_call(&context); early != CUDA_SUCCESS) return early;
    const wire::BulkCopy body = bulk_copy(stream, to, rows, part, last ? last_flags : flags);
    session.queue().append(
        id_of(wire::Command::bulk_to_device), 0, Session::handle_of(&context),
        [&](wire::Writer& writer) { writer.put(body); },
        [&](uint64_t sequence) {
          uploads.push_back(session.links().post({.sequence = sequence,
                                                  .memory = from + part.host,
                                                  .pitch = rows.host_pitch,
                                                  .width = part.width,
                                                  .rows = part.rows}));
        });
    if (trace::on()) [[unlikely]]
      trace::count_sent(id_of(wire::Command::bulk_to_device), part.width * part.rows, session.index());
    return CUDA_SUCCESS;
  });
  if (source == Source::kept) return result;
  session.queue().flush();
  const timeline::Wait wait("wait: the data is being sent", session.index());
  for (const auto& upload : uploads) {
    if (!session.links().wait_read(*upload)) return Session::failure();
  }
  return result;
}

struct ChosenPath {
  DataPath path;
  std::optional<RegisteredMemory::Lease> lease;  // direct
};

// Chooses the path, and registers the host memory for a direct copy.
ChosenPath data_path_for(Session& session, const void* host, const Rows& rows, bool waits,
                         bool passes_others) {
  DataFacts facts{.bytes = rows.width * rows.count,
                  .waits = waits,
                  .passes_others = passes_others,
                  .packed = rows.count == 1 || rows.host_pitch == rows.width,
                  .direct = session.registered().usable(),
                  .bulk = true};
  ChosenPath chosen{choose_data_path(facts), std::nullopt};
  if (chosen.path == DataPath::direct) {
    const auto allocation = host_memory().holding(host, facts.bytes);
    if (allocation) chosen.lease = session.registered().use(*allocation);
    facts.direct = chosen.lease.has_value();
    chosen.path = choose_data_path(facts);
  }
  if (chosen.path == DataPath::bulk && !session.links().ready()) {
    facts.bulk = false;
    chosen.path = choose_data_path(facts);
  }
  return chosen;
}

CUresult direct_to_device(Session& session, Context& context, CUstream stream, uint64_t to,
                          const std::byte* from, const Rows& rows, uint32_t flags, uint32_t last_flags,
                          Source source, const RegisteredMemory::Lease& lease) {
  return for_each_bulk_part(rows, [&](const BulkPart& part, bool last) {
    const wire::DirectCopy body{bulk_copy(stream, to, rows, part, last ? last_flags : flags),
                                reinterpret_cast<uintptr_t>(from + part.host), lease.key, 0};
    if (trace::on()) [[unlikely]]
      trace::count_sent(id_of(wire::Command::direct_to_device), part.width * part.rows, session.index());
    return fetch(session, context, wire::Command::direct_to_device, body,
                 {.rows = 1, .bulk = true, .held = lease.held}, source == Source::reusable && last);
  });
}

// Sends rows in messages of at most kBulkChunkBytes; send(head, bytes) sends one. `head` has the stream, the
// destination and the flags.
template <class Send>
CUresult send_long_rows(wire::CopyToDevice head, const std::byte* from, const Rows& rows, uint32_t last_flags,
                        const Send& send) {
  const uint64_t to = head.destination;
  for (uint64_t row = 0; row < rows.count; ++row) {
    for (uint64_t at = 0; at < rows.width; at += wire::kBulkChunkBytes) {
      head.destination = to + row * rows.device_pitch + at;
      head.width = static_cast<uint32_t>(std::min<uint64_t>(wire::kBulkChunkBytes, rows.width - at));
      head.rows = 1;
      head.pitch = head.width;
      if (row + 1 == rows.count && at + head.width == rows.width) head.flags = last_flags;
      if (const CUresult result = send(head, from + row * rows.host_pitch + at); result != CUDA_SUCCESS)
        return result;
    }
  }
  return CUDA_SUCCESS;
}
// The same, several rows in each message.
template <class Send>
CUresult send_short_rows(wire::CopyToDevice head, const std::byte* from, const Rows& rows,
                         uint32_t last_flags, const Send& send) {
  const uint64_t to = head.destination;
  const uint64_t rows_per_piece = wire::kBulkChunkBytes / rows.width;
  std::vector<std::byte> packed;
  for (uint64_t row = 0; row < rows.count; row += rows_per_piece) {
    const uint64_t count = std::min(rows_per_piece, rows.count - row);
    const std::byte* bytes = from + row * rows.host_pitch;
    if (rows.host_pitch != rows.width) {
      packed.resize(count * rows.width);
      wire::pack_rows(bytes, rows.width, rows.host_pitch, 0, packed.data(), packed.size());
      bytes = packed.data();
    }
    head.destination = to + row * rows.device_pitch;
    head.width = static_cast<uint32_t>(rows.width);
    head.rows = static_cast<uint32_t>(count);
    if (row + count == rows.count) head.flags = last_flags;
    if (const CUresult result = send(head, bytes); result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

}  // namespace

CUresult copy_to_device(Session& session, Context& context, CUstream stream, uint64_t to, const void* from,
                        const Rows& rows, CopyOrder order, Source kept, Lane lane) {
  const auto* source = static_cast<const std::byte*>(from);
  wire::CopyToDevice head{cuda::handle_bits(stream), to, rows.device_pitch};
  if (order == CopyOrder::passes_others) head.flags = wire::kCopyPassesOthers;
  const uint32_t last_flags = order == CopyOrder::before_all ? wire::kCopyOrdersStreams : head.flags;
  const auto [path, lease] = data_path_for(session, from, rows, kept == Source::reusable,
                                           lane == Lane::commands || order == CopyOrder::passes_others);
  switch (path) {
    case DataPath::direct:
      return direct_to_device(session, context, stream, to, source, rows, head.flags, last_flags, kept,
                              *lease);
    case DataPath::bulk:
      return bulk_to_device(session, context, stream, to, source, rows, head.flags, last_flags, kept);
    case DataPath::commands: break;
  }
  // The client's own copies must not wait for room, because other streams may be waiting for them.
  const bool may_wait = lane == Lane::bulk && order == CopyOrder::in_stream;
  const auto send = [&](const wire::CopyToDevice& piece, const std::byte* bytes) {
    const CUresult result = may_wait ? await_room(session, context, stream) : CUDA_SUCCESS;
    return result == CUDA_SUCCESS ? send_piece(session, context, piece, bytes) : result;
  };
  return rows.count == 1 || rows.width > wire::kBulkChunkBytes
             ? send_long_rows(head, source, rows, last_flags, send)
             : send_short_rows(head, source, rows, last_flags, send);
}

CUresult push_to_device(Context& context, uint64_t to, const void* from, uint64_t bytes) {
  CUstream own = nullptr;
  if (const CUresult result = internal_stream(context, &own); result != CUDA_SUCCESS) return result;
  return copy_to_device(*context.session, context, own, to, from, make_rows(bytes, 1, bytes, bytes),
                        CopyOrder::before_all, Source::reusable,
                        host_functions_pending() ? Lane::commands : Lane::bulk);
}

CUresult copy_shared(Session& session, Context& context, CUstream stream, uint64_t memory, uint64_t offset,
                     uint64_t device, const Rows& rows, bool to_device) {
  return session.post(wire::Command::copy_shared, &context,
                      wire::CopyShared{cuda::handle_bits(stream), device, rows.device_pitch, memory, offset,
                                       rows.host_pitch, rows.width, rows.count, to_device ? 1u : 0u, 0});
}

CUresult copy_from_device(Session& session, Context& context, CUstream stream, void* to, uint64_t from,
                          const Rows& rows, bool wait) {
  auto* const memory = static_cast<std::byte*>(to);
  const auto chosen = data_path_for(session, to, rows, wait, false);
  if (chosen.path == DataPath::commands) {
    const wire::CopyFromDevice body{cuda::handle_bits(stream), from, rows.device_pitch, rows.width,
                                    rows.count};
    return fetch(session, context, wire::Command::copy_from_device, body,
                 {.destination = memory, .pitch = rows.host_pitch, .width = rows.width, .rows = rows.count},
                 wait);
  }
  const bool direct = chosen.path == DataPath::direct;
  const auto command = direct ? wire::Command::direct_from_device : wire::Command::bulk_from_device;
  return for_each_bulk_part(rows, [&](const BulkPart& part, bool last) {
    const wire::BulkCopy body = bulk_copy(stream, from, rows, part, 0);
    if (trace::on()) [[unlikely]]
      trace::count_received(id_of(command), part.width * part.rows, session.index());
    Transfer transfer{.destination = memory + part.host,
                      .pitch = rows.host_pitch,
                      .width = part.width,
                      .rows = part.rows,
                      .bulk = true};
    if (!direct) {
      transfer.missing = part.width * part.rows;
      return fetch(session, context, command, body, transfer, wait && last);
    }
    transfer.held = chosen.lease->held;
    return fetch(
        session, context, command,
        wire::DirectCopy{body, reinterpret_cast<uintptr_t>(memory + part.host), chosen.lease->key, 0},
        transfer, wait && last);
  });
}

}  // namespace gpupool::client
