#include "server/softgpu/runtime/runtime.h"

#include <pthread.h>
#include <stdio.h>

#include <algorithm>
#include <cstdlib>
#include <shared_mutex>
#include <string>
#include <string_view>

#include "protocol/calls/graph_memory.h"
#include "server/softgpu/memory/address_space.h"
#include "server/softgpu/runtime/device.h"
#include "server/softgpu/runtime/open_code_file.h"

namespace gpupool::softgpu {
namespace {

std::string uuid_text(const CUuuid& uuid) {
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    char digits[3];
    snprintf(digits, sizeof digits, "%02x", static_cast<unsigned>(static_cast<unsigned char>(uuid.bytes[i])));
    text += digits;
  }
  return text;
}

// Parses CUDA_VISIBLE_DEVICES: device numbers or prefixes of UUIDs. The list ends at the first entry that is
// invalid, ambiguous or repeated.
std::vector<int> visible_devices(const std::vector<std::string>& uuids) {
  std::vector<int> all;
  for (int i = 0; i < static_cast<int>(uuids.size()); ++i) all.push_back(i);
  const char* variable = getenv("CUDA_VISIBLE_DEVICES");
  if (variable == nullptr) return all;
  std::vector<int> chosen;
  std::string_view rest = variable;
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    std::string entry(rest.substr(0, comma));
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
    std::erase(entry, ' ');
    int found = -1;
    if (entry.starts_with("GPU-")) {
      for (int i : all) {
        if (uuids[static_cast<size_t>(i)].starts_with(entry)) found = found == -1 ? i : -2;
      }
    } else {
      char* end = nullptr;
      const long number = strtol(entry.c_str(), &end, 10);
      if (end != entry.c_str() && number >= 0 && number < static_cast<long>(all.size())) {
        found = static_cast<int>(number);
      }
    }
    if (found < 0 || std::find(chosen.begin(), chosen.end(), found) != chosen.end()) break;
    chosen.push_back(found);
  }
  return chosen;
}

}  // namespace

Runtime& runtime() {
  static Runtime* const instance = new Runtime;
  return *instance;
}

Runtime::Runtime() {
  pthread_atfork(nullptr, nullptr, after_fork);
}

// A forked child has none of the parent's threads and cannot use its devices: calls in the child return
// CUDA_ERROR_NOT_INITIALIZED.
void Runtime::after_fork() {
  Runtime& self = runtime();
  if (self.state() != CUDA_SUCCESS) return;
  self.state_.store(CUDA_ERROR_NOT_INITIALIZED, std::memory_order_release);
  self.init_result_ = CUDA_ERROR_NOT_INITIALIZED;
}

CUresult Runtime::initialise(unsigned flags) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (state() == CUDA_SUCCESS) return CUDA_SUCCESS;
  std::lock_guard guard(init_mutex_);
  if (tried_) return init_result_;
  tried_ = true;
  init_result_ = open_devices();
  state_.store(init_result_ == CUDA_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED,
               std::memory_order_release);
  return init_result_;
}

namespace {

// The first process that opens an instance's device sets its memory size.
void warn_of_other_memory(const Config& config, int ordinal, uint64_t bytes) {
  const char* const wished = std::getenv("SOFTGPU_MEMORY");
  if (wished == nullptr || *wished == '\0' || bytes == config.memory_bytes) return;
  fprintf(stderr,
          "softgpu: SOFTGPU_MEMORY=%s: ignored, device %d of instance \"%s\" is in use by another process "
          "and has %llu MiB; "
          "set SOFTGPU_INSTANCE to another name to get separate devices\n",
          wished, ordinal, config.instance.empty() ? "default" : config.instance.c_str(),
          static_cast<unsigned long long>(bytes >> 20));
}

}  // namespace

CUresult Runtime::open_devices() {
  auto config = read_config();
  if (const std::string* error = std::get_if<std::string>(&config)) {
    fprintf(stderr, "%s\n", error->c_str());
    return CUDA_ERROR_INVALID_VALUE;
  }
  config_ = std::get<Config>(config);
  if (config_.dirty_memory) make_memory_dirty();
  if (!reserve_range()) {
    fprintf(stderr,
            "softgpu: cannot reserve the address range for device memory: another mapping of this process "
            "overlaps it\n");
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  std::vector<std::string> uuids;
  for (int i = 0; i < config_.devices; ++i) uuids.push_back(uuid_text(device_uuid(config_, i)));
  for (const int ordinal : visible_devices(uuids)) {
    std::string error;
    auto shared = SharedDevice::open(ordinal, config_.memory_bytes, &error);
    if (shared == nullptr) {
      fprintf(stderr, "softgpu: cannot open the shared state of device %d: %s\n", ordinal, error.c_str());
      devices_.clear();
      return CUDA_ERROR_OPERATING_SYSTEM;
    }
    warn_of_other_memory(config_, ordinal, shared->total_bytes());
    devices_.push_back(
        std::make_unique<Device>(config_, static_cast<int>(devices_.size()), ordinal, std::move(shared)));
  }
  if (config_.devices == 0) fprintf(stderr, "softgpu: no device: SOFTGPU_DEVICES is 0\n");
  return devices_.empty() ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS;
}

Device* Runtime::device(CUdevice index) const {
  if (index < 0 || static_cast<size_t>(index) >= devices_.size()) return nullptr;
  return devices_[static_cast<size_t>(index)].get();
}

void Runtime::release(const MemoryRange& range) {
  switch (range.kind) {
    case MemoryKind::pool: static_cast<MemoryPool*>(range.owner.get())->free_block(range.address); return;
    case MemoryKind::registered: unregister_host(range.address); return;
    default: break;
  }
  std::lock_guard access(memory_.access_lock());
  switch (range.kind) {
    case MemoryKind::device:
    case MemoryKind::managed:
    case MemoryKind::array:
    case MemoryKind::graph:
      if (Device* owner = device(range.device)) owner->heap().free(range.address);
      break;
    case MemoryKind::pinned: free_host(range.address, range.size); break;
    case MemoryKind::mapped: unmap_memory(range.address, range.size); break;
    case MemoryKind::opened: {
      // Unmap the whole imported memory, of which the range is a part.
      const uint64_t start = range.address - range.offset;
      const auto memory = memory_at(start, nullptr);
      const uint64_t size = memory ? round_up(memory->size(), page_bytes()) : 0;
      if (unmap_memory(start, size)) free_addresses(start, size);
      break;
    }
    default: break;
  }
}

void Runtime::free_context_memory(Context& context) {
  cuda::graph_memory::forget_context(context.handle());
  for (const MemoryRange& range : memory_.take_context(context.handle())) release(range);
  trim_pools(context.device());
}

void Runtime::add_pool(const Ref<Object>& pool) {
  std::lock_guard guard(pools_mutex_);
  pools_.push_back(pool);
}

void Runtime::remove_pool(const Object* pool) {
  std::lock_guard guard(pools_mutex_);
  std::erase_if(pools_, [&](const Ref<Object>& other) { return other.get() == pool; });
}

void Runtime::trim_pools(Device& device) {
  device.default_pool()->trim_to_threshold();
  std::lock_guard guard(pools_mutex_);
  for (const Ref<Object>& pool : pools_) {
    auto& memory_pool = static_cast<MemoryPool&>(*pool);
    if (&memory_pool.device() == &device) memory_pool.trim_to_threshold();
  }
}

bool Runtime::free_cached_memory(Device& device) {
  bool freed = device.default_pool()->trim(0);
  std::lock_guard guard(pools_mutex_);
  for (const Ref<Object>& pool : pools_) {
    auto& memory_pool = static_cast<MemoryPool&>(*pool);
    if (&memory_pool.device() == &device) freed |= memory_pool.trim(0);
  }
  return freed;
}

std::shared_ptr<CodeFile> Runtime::code_file() {
  std::call_once(code_file_opened_, [this] {
    OpenedCodeFile opened = open_code_file(config_.cache, config_.cache_bytes);
    if (!opened.problem.empty()) {
      const std::string line = "compiled code is not cached: " + opened.problem;
      if (config_.cache.empty())
        log(line);
      else
        fprintf(stderr, "softgpu: SOFTGPU_CACHE: %s\n", line.c_str());
    }
    code_file_ = std::move(opened.file);
  });
  return code_file_;
}

void Runtime::log(const std::string& line) const {
  if (config_.log) fprintf(stderr, "softgpu: %s\n", line.c_str());
}

}  // namespace gpupool::softgpu
