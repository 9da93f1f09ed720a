// The client's linkers (cuLink*): the driver reads options and writes logs through pointers for as long as a linker lives, so these
// are kept here. The executor's thread alone uses it.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "protocol/wire/images.h"
#include "server/worker/contexts.h"
#include "server/worker/device_api.h"
#include "server/worker/images.h"

namespace gpupool::worker {

constexpr size_t kMaxLinkers = 1024;  // more than any program has at a time

class Linkers {
 public:
  using Options = std::span<const wire::JitOption>;

  explicit Linkers(const DeviceApi& api) : api_(api) {}
  Linkers(const Linkers&) = delete;
  Linkers& operator=(const Linkers&) = delete;

  // With the linker's context current, in all of these. Options: numeric ones alone (wire::is_numeric_jit_option).
  CUresult create(uint64_t linker, const ContextState& context, Options options);
  // `bytes` end with a NUL that is not part of them. `log`: what the driver had to say.
  CUresult add(uint64_t linker, CUjitInputType type, std::span<const std::byte> bytes, const std::string& name, Options options,
               std::string& log);
  CUresult complete(uint64_t linker, uint64_t* size, std::string& log);
  // At most wire::kMaxImagePartBytes of the image; nothing: there is none, or not as much.
  std::span<const std::byte> image(uint64_t linker, uint64_t offset) const;
  CUresult destroy(uint64_t linker);
  // Those of the current context, which is about to end.
  void drop(const ContextState& context);
  const ContextState* context_of(uint64_t linker) const;

 private:
  struct OptionList {
    std::vector<CUjit_option> names;
    std::vector<void*> values;
  };
  struct Linker {
    const ContextState* context = nullptr;
    CUlinkState state = nullptr;
    OptionList options;
    std::vector<std::unique_ptr<OptionList>> of_inputs;
    char info[kJitLogBytes] = {};
    char error[kJitLogBytes] = {};
    std::span<const std::byte> image;  // the driver's, as long as the linker lives
  };
  static OptionList list(Options options);
  static std::string take_log(Linker& linker);
  Linker* find(uint64_t linker) const;

  const DeviceApi& api_;
  std::unordered_map<uint64_t, std::unique_ptr<Linker>> linkers_;
};

}  // namespace gpupool::worker
