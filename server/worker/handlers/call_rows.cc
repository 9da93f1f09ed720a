#include "server/worker/handlers/call_rows.h"

#include <array>

#include "protocol/calls/codec.h"
#include "protocol/wire/frame.h"
#include "server/worker/memory/device_memory.h"

namespace gpupool::worker {
namespace {

using namespace cuda::role;
using cuda::Kind;
using cuda::Mode;

template <class Function, class... Roles>
std::optional<CUresult> execute(void* function, wire::Reader& reader, wire::Writer& writer,
                                HandleTable& table, const DeviceMemory& memory) {
  using Row = cuda::Row<Function, Roles...>;
  return Row::execute(reinterpret_cast<typename Row::Function>(function), reader, writer, table, memory);
}

// Visitor for Row::visit() that collects the named objects.
struct Collector {
  CallObjects& objects;

  template <class Role, class Slot>
  void operator()(Role, const Slot&) {}
  template <class Slot>
  void operator()(stream, const Slot& slot) {
    objects.stream = slot.handle;
  }
  template <Kind K, class Slot>
  void operator()(handle<K>, const Slot& slot) {
    name<K>(slot.handle);
  }
  template <Kind K, class Slot>
  void operator()(handle_in_use<K>, const Slot& slot) {
    name<K>(slot.handle);
  }
  template <Kind K, class Slot>
  void operator()(new_handle<K>, const Slot& slot) {
    objects.made.add(slot.handle);
  }
  template <Kind K, class Slot>
  void operator()(destroyed_handle<K>, const Slot& slot) {
    if (K == Kind::stream) objects.stream = slot.handle;
    objects.destroyed.add(slot.handle);
  }
  template <Kind K>
  void name(uint64_t object) {
    if (K != Kind::context) objects.named.add(object);
    if (K == Kind::texture_reference || K == Kind::surface_reference) objects.references = true;
  }
};

template <class Function, class... Roles>
bool objects(wire::Reader reader, CallObjects& objects) {
  return cuda::Row<Function, Roles...>::visit(reader, Collector{objects});
}

constexpr bool needs_context(Mode mode) {
  return mode == Mode::async || mode == Mode::sync || mode == Mode::once;
}

constexpr bool is_async(Mode mode) {
  return mode == Mode::async || mode == Mode::async_without_context;
}

#define CUDA_BY_HAND(name)
#define CUDA_CALL_CUSTOM_EXPORT(...) CUDA_CALL(__VA_ARGS__)

#define CUDA_CALL(id, name, ...) id,
constexpr uint16_t kIds[] = {
#include "protocol/calls/calls.def"
};
#undef CUDA_CALL

constexpr size_t kRows = std::size(kIds);
constexpr uint16_t largest_id() {
  uint16_t largest = 0;
  for (const uint16_t id : kIds) largest = id > largest ? id : largest;
  return largest;
}
constexpr bool ids_differ() {
  std::array<bool, largest_id() + 1> seen{};
  for (const uint16_t id : kIds) {
    if (seen[id]) return false;
    seen[id] = true;
  }
  return true;
}
static_assert(largest_id() < wire::kFirstCommand, "ids from kFirstCommand on belong to commands.def");
static_assert(ids_differ(), "two rows of the call table have the same id");
static_assert(kRows < 0xffff);

constexpr uint16_t kNoRow = 0xffff;
constexpr auto kRowOfId = [] {
  std::array<uint16_t, largest_id() + 1> rows{};
  for (auto& row : rows) row = kNoRow;
  for (size_t row = 0; row < kRows; ++row) rows[kIds[row]] = static_cast<uint16_t>(row);
  return rows;
}();

#define CUDA_CALL(id, name, mode, ...)                            \
  CallRow{id,                                                     \
          #name,                                                  \
          needs_context(Mode::mode),                              \
          cuda::kRowMakes<__VA_ARGS__>,                           \
          cuda::kRowDestroys<__VA_ARGS__>,                        \
          is_async(Mode::mode),                                   \
          &execute<decltype(&::name) __VA_OPT__(, ) __VA_ARGS__>, \
          &objects<decltype(&::name) __VA_OPT__(, ) __VA_ARGS__>},
const CallRow kTable[] = {
#include "protocol/calls/calls.def"
};
#undef CUDA_CALL

}  // namespace

std::span<const CallRow> call_rows() {
  return kTable;
}

std::optional<size_t> find_row(uint16_t id) {
  if (id >= kRowOfId.size() || kRowOfId[id] == kNoRow) return std::nullopt;
  return kRowOfId[id];
}

}  // namespace gpupool::worker
