#include "server/worker/migration/departure.h"

#include <time.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "common/log/log.h"
#include "protocol/wire/commands.h"
#include "protocol/wire/copies.h"
#include "protocol/wire/images.h"
#include "protocol/wire/writer.h"
#include "server/worker/migration/command_stream.h"
#include "server/worker/migration/history_rules.h"
#include "server/worker/migration/variables.h"
#include "server/worker/session/session.h"

namespace gpupool::worker {
namespace {

using Id = wire::Command;
using transport::Clock;

constexpr timespec kPollInterval{0, 500'000};    // the device does not signal that a stream is done
constexpr std::chrono::seconds kTargetTime{60};  // for its last copies
// Uploads of the target's session get these numbers; the client's own start at 0 and come later.
constexpr uint32_t kUploadGeneration = 0xfffff;

class Departure {
 public:
  Departure(Session& session, transport::Connection& target)
      : session_(session), target_(target), out_(target, kTargetTime) {}

  Result<void> run(uint64_t sequence) {
    staging_.resize(wire::kBulkChunkBytes);
    send_addresses();
    send_history(true);
    send_mappings();
    send_history(false);
    send_contents();
    send_variables();
    send_records();
    command(Id::end_migration, 0, wire::EndMigration{0, sequence, 1, 0});
    if (!status_ && !out_.answered()) return status_.error();
    const auto answer = receive_answer(target_, Clock::now() + kTargetTime);
    if (!answer) return Error{answer.error().code, "the other server: " + answer.error().message};
    if (answer->result != CUDA_SUCCESS)
      return Error{ErrorCode::refused, "the other server: " + answer->reason};
    log::info("session_sent", {{"session", session_.start.session_number}, {"bytes", out_.sent()}});
    return {};
  }

 private:
  void check(Result<void> sent) {
    if (status_ && !sent) status_ = std::move(sent);
  }
  void send(uint16_t id, uint64_t context, std::span<const std::byte> body,
            std::span<const std::byte> more = {}, std::span<const std::byte> expected = {},
            bool checks = false) {
    if (!status_) return;
    check(out_.send({.id = id, .context = context, .sequence = ++number_}, body, more, expected, checks));
  }
  template <class Body>
  void command(Id id, uint64_t context, const Body& body, std::span<const std::byte> more = {}) {
    send(static_cast<uint16_t>(id), context, std::as_bytes(std::span(&body, 1)), more);
  }

  // The program knows addresses of the range, so it must be the same.
  void send_addresses() {
    const wire::AddressRange range{session_.memory.base(), session_.memory.size()};
    const wire::MoveAddresses wanted{range.base, range.size};
    send(static_cast<uint16_t>(Id::move_addresses), 0, std::as_bytes(std::span(&wanted, 1)), {},
         std::as_bytes(std::span(&range, 1)), true);
  }

  static bool makes_context(uint16_t id) {
    return id == static_cast<uint16_t>(Id::avoid_addresses) ||
           id == static_cast<uint16_t>(Id::retain_primary_context) ||
           id == static_cast<uint16_t>(Id::create_context);
  }

  // Contexts first: mapping memory needs them, and other commands may need mapped memory.
  void send_history(bool contexts) {
    session_.history.for_each([&](const History::Entry& entry) {
      if (makes_context(entry.header.id) != contexts) return;
      if (entry.image) return send_load(entry);
      send(entry.header.id, entry.header.context, entry.body, {}, entry.reply, entry.effect.checks_reply);
    });
  }

  // Whatever way the image came, the target gets it as an upload.
  void send_load(const History::Entry& entry) {
    wire::Reader reader(entry.body);
    auto load = reader.get<wire::LoadImage>();
    if (load.upload == 0) (void)reader.get<wire::ImageName>();
    const auto options = reader.get_bytes(reader.remaining());
    place_variables(entry);
    load.upload = cuda::make_handle(cuda::Kind::upload, kUploadGeneration, ++uploads_);
    const auto image = entry.image->bytes();
    for (size_t at = 0; at < image.size(); at += wire::kBulkChunkBytes) {
      const auto part = image.subspan(at, std::min<size_t>(wire::kBulkChunkBytes, image.size() - at));
      command(Id::upload_part, entry.header.context, wire::UploadPart{load.upload, image.size()}, part);
    }
    send(entry.header.id, entry.header.context, std::as_bytes(std::span(&load, 1)), options);
  }

  // The program may know where the variables of this image are. Their places follow from that of one of them,
  // in each context.
  void place_variables(const History::Entry& load) {
    if (load.effect.makes.empty() || !session_.history.exists(load.effect.makes.front())) return;
    std::vector<Variable>& all = variables_[load.effect.makes.front()];
    check(for_each_variable(session_, load, [&](const Variable& variable) { all.push_back(variable); }));
    const ContextState* last = nullptr;
    for (const Variable& variable : all) {
      if (std::exchange(last, variable.context) == variable.context) continue;
      wire::Buffer body;
      wire::Writer writer(body);
      writer.put(wire::PlaceVariable{variable.address});
      writer.put_text(variable.name);
      send(static_cast<uint16_t>(Id::place_variable), variable.context->handle, body);
    }
  }

  void send_mappings() {
    session_.memory.for_each_mapping([&](const DeviceMemory::Mapped& mapped) {
      uint32_t peers = 0;  // the client's numbers of devices
      for (int device = 0; device < 32; ++device) {
        if ((mapped.peers >> device & 1) == 0) continue;
        const auto number = session_.start.visible.number_of(device);
        if (number && *number < 32) peers |= 1u << *number;
      }
      const int32_t device = session_.start.visible.number_of(mapped.device).value_or(-1);
      const uint64_t context = mapped.context ? mapped.context->handle : 0;
      command(Id::map_memory, context, wire::MapMemory{mapped.address, mapped.size, device, peers});
    });
  }

  void send_contents() {
    session_.memory.for_each_mapping(
        [&](const DeviceMemory::Mapped& mapped) { send_bytes(mapped.address, mapped.size, mapped.device); });
    session_.virtual_memory.for_each_mapping(
        [&](uint64_t address, uint64_t size, int device) { send_bytes(address, size, device); });
  }

  void send_bytes(uint64_t address, uint64_t size, int device) {
    const ContextState* const context = session_.contexts.find_on(device);
    if (!context) return check(Error{ErrorCode::invalid, "a GPU with memory has no context"});
    for (uint64_t at = 0; at < size && status_; at += wire::kBulkChunkBytes) {
      const auto bytes = static_cast<uint32_t>(std::min<uint64_t>(wire::kBulkChunkBytes, size - at));
      std::span<const std::byte> data(staging_.data(), bytes);
      if (session_.memory.is_cpu_accessible(address + at, bytes)) {
        data = {reinterpret_cast<const std::byte*>(address + at), bytes};
      } else if (const CUresult result =
                     session_.scrubber.copy_out(staging_.data(), address + at, bytes, device);
                 result != CUDA_SUCCESS) {
        return check(Error{ErrorCode::unavailable, "reading device memory: " + error_text(result)});
      }
      command(Id::copy_to_device, context->handle, wire::CopyToDevice{0, address + at, bytes, bytes, 1, 0, 0},
              data);
    }
  }

  void send_variables() {
    for (const auto& [owner, variables] : variables_) {
      for (const Variable& variable : variables) send_variable(owner, variable);
    }
  }

  void send_variable(uint64_t owner, const Variable& variable) {
    const ContextState& context = *variable.context;
    for (uint64_t at = 0; at < variable.size && status_; at += wire::kBulkChunkBytes) {
      const auto bytes = std::min<uint64_t>(wire::kBulkChunkBytes, variable.size - at);
      const CUresult result =
          session_.scrubber.copy_out(staging_.data(), variable.address + at, bytes, context.device);
      if (result != CUDA_SUCCESS)
        return check(
            Error{ErrorCode::unavailable, "reading variable " + variable.name + ": " + error_text(result)});
      wire::Buffer head;
      wire::Writer writer(head);
      writer.put(wire::FillVariable{owner, at, bytes});
      writer.put_text(variable.name);
      send(static_cast<uint16_t>(Id::fill_variable), context.handle, head, std::span(staging_).first(bytes));
    }
  }

  void send_records() {
    for (const uint64_t event : session_.history.recorded()) {
      wire::Buffer body;
      wire::Writer writer(body);
      writer.put(event);
      writer.put(uint64_t{0});  // the legacy stream of the event's context
      send(kEventRecord, session_.history.context_of(event), body);
    }
  }

  Session& session_;
  transport::Connection& target_;
  CommandSender out_;
  std::vector<std::byte> staging_;
  std::map<uint64_t, std::vector<Variable>> variables_;  // by module or library
  Result<void> status_;                                  // the first error
  uint64_t number_ = 0;
  uint32_t uploads_ = 0;
};

}  // namespace

bool await_idle(Session& session, Clock::duration longest) {
  const auto has_waits = [&] {
    return !std::ranges::all_of(session.contexts.all(), [&](const auto& one) {
      return session.waits.drain(one.second->object, Clock::now());
    });
  };
  const Waiting waiting("running work to end, to migrate the session");
  for (const auto stop = Clock::now() + longest; session.moves.has_work() || has_waits();) {
    if (session.outbox.over() || Clock::now() > stop || !session.executor.settle()) return false;
    ::nanosleep(&kPollInterval, nullptr);
  }
  return !session.outbox.over();
}

const char* migration_obstacle(Session& session) {
  if (!session.history.on())
    return "no history, because its client cannot migrate or poold does not allow it";
  if (const char* const obstacle = session.history.obstacle()) return obstacle;
  if (session.virtual_memory.has_multicasts()) return "a multicast object";
  if (session.virtual_memory.shares()) return "memory that is shared with other programs";
  if (session.start.connection->direct_memory()) return "a connection over rdma";
  return session.virtual_memory.has_unmapped() ? "memory that is allocated but not mapped (cuMemCreate)"
                                               : nullptr;
}

Result<void> depart(Session& session, transport::Connection& target, uint64_t sequence) {
  return Departure(session, target).run(sequence);
}

}  // namespace gpupool::worker
