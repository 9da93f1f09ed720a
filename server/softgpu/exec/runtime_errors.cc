// cudaGetErrorName and cudaGetErrorString for kernels. The texts are stored in the reserved range, where
// kernels may read.
#include <cstring>
#include <map>
#include <string_view>
#include <utility>

#include "server/softgpu/exec/device_runtime.h"
#include "server/softgpu/memory/address_space.h"

namespace gpupool::softgpu {
namespace {

struct Error {
  uint32_t number;
  std::string_view name, text;
};
constexpr Error kErrors[] = {
#define RUNTIME_ERROR(number, name, text) {number, #name, text},
#include "server/softgpu/exec/runtime_errors.def"
#undef RUNTIME_ERROR
};
constexpr std::string_view kUnknown = "unrecognized error code";

class Texts {
 public:
  Texts() {
    uint64_t bytes = kUnknown.size() + 1;
    for (const Error& error : kErrors) bytes += error.name.size() + error.text.size() + 2;
    const auto memory = allocate_host(round_up(bytes, page_bytes()), page_bytes());
    if (!memory) return;
    uint64_t at = *memory;
    const auto keep = [&](std::string_view text) {
      std::memcpy(reinterpret_cast<void*>(at), text.data(), text.size());
      return std::exchange(at, at + text.size() + 1);
    };
    unknown_ = keep(kUnknown);
    for (const Error& error : kErrors) known_[error.number] = {keep(error.name), keep(error.text)};
  }
  uint64_t name(uint32_t error) const { return find(error).first; }
  uint64_t text(uint32_t error) const { return find(error).second; }

 private:
  std::pair<uint64_t, uint64_t> find(uint32_t error) const {
    const auto found = known_.find(error);
    return found == known_.end() ? std::pair{unknown_, unknown_} : found->second;
  }
  uint64_t unknown_ = 0;
  std::map<uint32_t, std::pair<uint64_t, uint64_t>> known_;
};

const Texts& texts() {
  static const auto* const kept = new Texts;
  return *kept;
}

}  // namespace

extern "C" uint64_t softgpu_cudaGetErrorName(ThreadContext*, uint32_t error) {
  return texts().name(error);
}
extern "C" uint64_t softgpu_cudaGetErrorString(ThreadContext*, uint32_t error) {
  return texts().text(error);
}

}  // namespace gpupool::softgpu
