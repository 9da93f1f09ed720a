#include "client/copies/server_copy.h"

#include <algorithm>
#include <vector>

#include "client/copies/bulk_parts.h"
#include "client/copies/transfer.h"
#include "client/process/log.h"
#include "client/session/peer_route.h"
#include "client/streams/side_stream.h"
#include "protocol/calls/errors.h"
#include "protocol/peers/proof.h"
#include "protocol/wire/copies.h"

namespace gpupool::client {
namespace {

constexpr uint64_t kPiece = 4 * 1024 * 1024;

std::byte* host_pointer(uint64_t address) {
  return reinterpret_cast<std::byte*>(static_cast<uintptr_t>(address));
}

// A buffer for two pieces. Reused by later copies and never freed, because data that was in flight when a
// server was lost may still be written to it.
class Buffers {
 public:
  Buffers() {
    std::lock_guard lock(idle().mutex);
    if (idle().memory.empty()) {
      memory_ = new std::byte[2 * kPiece];
    } else {
      memory_ = idle().memory.back();
      idle().memory.pop_back();
    }
  }
  ~Buffers() {
    std::lock_guard lock(idle().mutex);
    idle().memory.push_back(memory_);
  }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;
  std::byte* piece(size_t index) { return memory_ + index % 2 * kPiece; }

 private:
  struct Idle {
    std::mutex mutex;
    std::vector<std::byte*> memory;
  };
  static Idle& idle() {
    static Idle* const only = new Idle;
    return *only;
  }
  std::byte* memory_;
};

struct Piece {
  uint64_t from, to;  // addresses
  uint64_t width, rows;
};

std::vector<Piece> cut(const CopyBox& box) {
  std::vector<Piece> pieces;
  for (uint64_t z = 0; z < box.depth; ++z) {
    const uint64_t from = box.from.address + z * box.from.slice;
    const uint64_t to = box.to.address + z * box.to.slice;
    const auto [width, height, from_pitch, to_pitch] =
        make_rows(box.width, box.height, box.from.pitch, box.to.pitch);
    const uint64_t step = std::max<uint64_t>(1, kPiece / width);
    for (uint64_t row = 0; row < height; row += step) {
      for (uint64_t at = 0; at < width; at += kPiece) {
        pieces.push_back({from + row * from_pitch + at, to + row * to_pitch + at,
                          std::min(kPiece, width - at), std::min(step, height - row)});
      }
    }
  }
  return pieces;
}

// Copies through the client: receives the next piece while sending the current one.
CUresult relay(const CopyBox& box, CUstream source, CUstream target) {
  const std::vector<Piece> pieces = cut(box);
  Context& from = *box.from.context;
  Context& to = *box.to.context;
  Buffers buffers;
  const auto fetch = [&](size_t i) {
    const Piece& piece = pieces[i];
    return copy_from_device(*from.session, from, source, buffers.piece(i), piece.from,
                            make_rows(piece.width, piece.rows, piece.width, box.from.pitch), false);
  };
  CUresult result = fetch(0);
  for (size_t i = 0; i < pieces.size() && result == CUDA_SUCCESS; ++i) {
    result = synchronize_stream(from, source);
    if (result != CUDA_SUCCESS) break;
    if (i + 1 < pieces.size()) result = fetch(i + 1);
    const Piece& piece = pieces[i];
    const CUresult sent = copy_to_device(*to.session, to, target, piece.to, buffers.piece(i),
                                         make_rows(piece.width, piece.rows, piece.width, box.to.pitch),
                                         CopyOrder::in_stream, Source::reusable, Lane::commands);
    if (result == CUDA_SUCCESS) result = sent;
  }
  const CUresult arrived = synchronize_stream(to, target);
  if (result == CUDA_SUCCESS) return arrived;
  (void)synchronize_stream(from, source);  // the buffers must not be written any more
  return result;
}

// Copies treat two sessions of one poold like sessions of different ones.
PeerRoute route_between(Session& from, Session& to) {
  return choose_peer_route(from.links().parameters()->peer_end, to.links().parameters()->peer_end, false);
}

// Fills in all but the copy's number and key.
wire::PeerTarget target_of(const BulkConnections::Parameters& parameters, PeerRoute route) {
  wire::PeerTarget target = make_peer_target(parameters.peer_end, route);
  target.rdma = parameters.options.rdma.use != transport::RdmaOptions::Use::never;
  return target;
}

// Sends one part from server to server. False: it was not transferred and must take another path.
bool send_part(const CopyBox& box, const BulkPart& part, uint64_t from_address, uint64_t to_address,
               CUstream source, CUstream target, CUresult* result) {
  Session& from = *box.from.context->session;
  Session& to = *box.to.context->session;
  const std::scoped_lock one_at_a_time(from.peer_copy(), to.peer_copy());
  const auto receiver = to.links().parameters();
  const PeerRoute route = route_between(from, to);
  if (!is_usable(route)) return false;  // a session has just moved
  const auto rows = [&](CUstream stream, uint64_t address, uint64_t pitch) {
    return wire::BulkCopy{
        cuda::handle_bits(stream), address, part.rows == 1 ? part.width : pitch, part.width, part.rows, 0, 0};
  };
  wire::CopyToPeer copy{rows(source, from_address + part.host, box.from.pitch), target_of(*receiver, route)};
  *result = to.post(wire::Command::bulk_to_device, box.to.context,
                    rows(target, to_address + part.device, box.to.pitch), &copy.target.copy);
  if (*result != CUDA_SUCCESS) return true;
  copy.target.key = peers::copy_key(receiver->peer_end.token, copy.target.copy);
  wire::Buffer reply;
  const CUresult sent = from.call(wire::Command::copy_to_peer, box.from.context, copy, reply);
  if (sent == CUDA_SUCCESS) return true;
  (void)to.post(wire::Command::cancel_bulk, nullptr, wire::CancelBulk{copy.target.copy});
  if (sent == CUDA_ERROR_NOT_SUPPORTED) {
    from.set_peer_unreachable(to.server());
    log_debug(
        "server %s cannot reach %s: copies between them go through this program; see --peers of the first "
        "server's poold",
        from.server().c_str(), to.server().c_str());
  }
  *result = sent;
  return cuda::is_sticky(sent) || sent == Session::failure();
}

// Makes the source's server send to the target's. False: it cannot, or can no longer.
bool send_directly(const CopyBox& box, CUstream source, CUstream target, CUresult* result) {
  Session& from = *box.from.context->session;
  Session& to = *box.to.context->session;
  if (!from.reaches_peer(to.server()) || !is_usable(route_between(from, to))) return false;
  if (const uint32_t version = from.links().parameters()->peer_end.protocol;
      version != wire::kPeerProtocolVersion) {
    from.set_peer_unreachable(to.server());  // so that this is logged once for each server
    log_debug(
        "server %s has version %#x of the server-to-server protocol, this program %#x: copies from it go "
        "through this program; use the same gpupool release",
        from.server().c_str(), version, unsigned{wire::kPeerProtocolVersion});
    return false;
  }
  bool there = true;
  *result = CUDA_SUCCESS;
  for (uint64_t z = 0; z < box.depth && there && *result == CUDA_SUCCESS; ++z) {
    const Rows rows = make_rows(box.width, box.height, box.from.pitch, box.to.pitch);
    (void)for_each_bulk_part(rows, [&](const BulkPart& part, bool) {
      there = send_part(box, part, box.from.address + z * box.from.slice, box.to.address + z * box.to.slice,
                        source, target, result);
      return there ? *result : CUDA_ERROR_UNKNOWN;
    });
  }
  if (there && *result == CUDA_SUCCESS) *result = synchronize_stream(*box.to.context, target);
  return there;
}

// Copies between the program's memory and a device.
CUresult move(const CopyBox& box, const CopyEnd& device, CUstream stream) {
  const bool up = box.to.on_device;
  for (uint64_t z = 0; z < box.depth; ++z) {
    const uint64_t from = box.from.address + z * box.from.slice;
    const uint64_t to = box.to.address + z * box.to.slice;
    const Rows rows = make_rows(box.width, box.height, up ? box.from.pitch : box.to.pitch, device.pitch);
    Context& context = *device.context;
    const CUresult result =
        up ? copy_to_device(*context.session, context, stream, to, host_pointer(from), rows,
                            CopyOrder::in_stream, Source::reusable, Lane::commands)
           : copy_from_device(*context.session, context, stream, host_pointer(to), from, rows, true);
    if (result != CUDA_SUCCESS) return result;
  }
  return up ? synchronize_stream(*device.context, stream) : CUDA_SUCCESS;
}

// Performs the copy and waits for it.
CUresult copy_now(const CopyBox& box) {
  CUstream source = nullptr, target = nullptr;
  if (box.from.on_device) {
    if (const CUresult result = internal_stream(*box.from.context, &source); result != CUDA_SUCCESS)
      return result;
  }
  if (box.to.on_device) {
    if (const CUresult result = internal_stream(*box.to.context, &target); result != CUDA_SUCCESS)
      return result;
  }
  if (!box.from.on_device) return move(box, box.to, target);
  if (!box.to.on_device) return move(box, box.from, source);
  if (box.from.context->session == box.to.context->session) {  // only the stream belongs to another server
    const CUresult result = copy_on_server(*box.from.context, source, box);
    return result == CUDA_SUCCESS ? synchronize_stream(*box.from.context, source) : result;
  }
  CUresult result = CUDA_SUCCESS;
  if (send_directly(box, source, target, &result)) return result;
  return relay(box, source, target);
}

}  // namespace

CUresult copy_between_servers(Context& context, CUstream stream, const CopyBox& box, bool wait) {
  // Reports a failed session or context at once, as every copy does.
  for (Context* const named : {&context, box.from.context, box.to.context}) {
    if (!named) continue;
    if (const CUresult result = named->session->before_call(named); result != CUDA_SUCCESS) return result;
  }
  if (!wait)
    return run_between(context, stream, box.from.context, box.to.context, [box] { return copy_now(box); });
  for (Context* const named : {&context, box.from.context, box.to.context}) {
    if (!named) continue;
    if (const CUresult result = synchronize_context(*named); result != CUDA_SUCCESS) return result;
  }
  return copy_now(box);
}

CUresult copy_on_server(Context& context, CUstream stream, const CopyBox& box) {
  const CallTarget call_target{context.session, &context};
  if (box.height == 1 && box.depth == 1)
    return rows::cuMemcpyDtoDAsync_v2::at(call_target, {box.to.address, box.from.address, box.width, stream});
  for (uint64_t z = 0; z < box.depth; ++z) {
    CUDA_MEMCPY2D copy{};
    copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = box.from.address + z * box.from.slice;
    copy.srcPitch = box.from.pitch;
    copy.dstDevice = box.to.address + z * box.to.slice;
    copy.dstPitch = box.to.pitch;
    copy.WidthInBytes = box.width;
    copy.Height = box.height;
    const CUresult result = rows::cuMemcpy2DAsync_v2::at(call_target, {&copy, stream});
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

CUresult copy_in_legacy_streams(Context& context, Context& from, Context& to,
                                const std::function<CUresult()>& copy) {
  for (Context* const end : {&from, &to}) {
    const CUresult result = end == &context ? CUDA_SUCCESS : order_after(context, nullptr, *end, nullptr);
    if (result != CUDA_SUCCESS) return result;
  }
  if (const CUresult result = copy(); result != CUDA_SUCCESS) return result;
  for (Context* const end : {&from, &to}) {
    const CUresult result = end == &context ? CUDA_SUCCESS : order_after(*end, nullptr, context, nullptr);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

Context* context_of(Session& session, uint64_t address) {
  if (const auto found = session.addresses().find(address)) {
    return handles().find_as<Context>(Kind::context, found->context);
  }
  // Mapped by the program: every context of its device can use it.
  for (const auto& device : devices()) {
    if (device->session == &session && device->primary->active.load()) return device->primary;
  }
  return nullptr;
}

}  // namespace gpupool::client
