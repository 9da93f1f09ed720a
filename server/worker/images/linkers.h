// The client's linkers (cuLink*). The driver reads options and writes logs through pointers while a linker
// exists, so this class owns them. Executor's thread only.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "protocol/wire/images.h"
#include "server/worker/device/device_api.h"
#include "server/worker/images/images.h"
#include "server/worker/session/contexts.h"

namespace gpupool::worker {

constexpr size_t kMaxLinkers = 1024;  // per session; more than any program uses at a time

class Linkers {
 public:
  using Options = std::span<const wire::JitOption>;

  explicit Linkers(const DeviceApi& api) : api_(api) {}
  Linkers(const Linkers&) = delete;
  Linkers& operator=(const Linkers&) = delete;

  // All functions need the linker's context to be current. `options`: numeric ones only
  // (wire::is_numeric_jit_option).
  CUresult create(uint64_t linker, const ContextState& context, Options options);
  // A NUL byte must follow `bytes`. `log`: output of the driver.
  CUresult add(uint64_t linker, CUjitInputType type, std::span<const std::byte> bytes,
               const std::string& name, Options options, std::string& log);
  CUresult complete(uint64_t linker, uint64_t* size, std::string& log);
  // Returns at most wire::kMaxImagePartBytes of the image from `offset`; empty if there is no image or
  // `offset` is beyond its end.
  std::span<const std::byte> image(uint64_t linker, uint64_t offset);
  // True if the client has yet to fetch a part of an image.
  bool has_unfetched() const;
  CUresult destroy(uint64_t linker);
  // Destroys the linkers of the current context, which is about to be destroyed.
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
    std::span<const std::byte> image;  // owned by the driver while the linker exists
    uint64_t fetched = 0;              // bytes of it
  };
  static OptionList list(Options options);
  static std::string take_log(Linker& linker);
  Linker* find(uint64_t linker) const;

  const DeviceApi& api_;
  std::unordered_map<uint64_t, std::unique_ptr<Linker>> linkers_;
};

}  // namespace gpupool::worker
