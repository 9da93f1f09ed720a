#include "server/worker/rows.h"

#include <array>

#include "protocol/cuda/codec.h"
#include "protocol/wire/frame.h"

namespace gpupool::worker {
namespace {

using namespace cuda::role;
using cuda::Kind;
using cuda::Mode;

template <class Function, class... Roles>
std::optional<CUresult> execute(void* function, wire::Reader& reader, wire::Writer& writer, HandleTable& table) {
  using Row = cuda::Row<Function, Roles...>;
  return Row::execute(reinterpret_cast<typename Row::Function>(function), reader, writer, table);
}

constexpr bool needs_context(Mode mode) { return mode == Mode::async || mode == Mode::sync || mode == Mode::once; }

#define CUDA_BY_HAND(name)
#define CUDA_CALL_PTSZ(...) CUDA_CALL(__VA_ARGS__)
#define CUDA_CALL_QUIET(...) CUDA_CALL(__VA_ARGS__)

#define CUDA_CALL(id, name, ...) id,
constexpr uint16_t kIds[] = {
#include "protocol/cuda/calls.def"
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

#define CUDA_CALL(id, name, mode, ...) \
  CallRow{id, #name, needs_context(Mode::mode), &execute<decltype(&::name) __VA_OPT__(, ) __VA_ARGS__>},
const CallRow kTable[] = {
#include "protocol/cuda/calls.def"
};
#undef CUDA_CALL

}  // namespace

std::span<const CallRow> call_rows() { return kTable; }

std::optional<size_t> find_row(uint16_t id) {
  if (id >= kRowOfId.size() || kRowOfId[id] == kNoRow) return std::nullopt;
  return kRowOfId[id];
}

}  // namespace gpupool::worker
