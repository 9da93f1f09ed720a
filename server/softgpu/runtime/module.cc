#include "server/softgpu/runtime/module.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <mutex>
#include <string>

#include "protocol/driver/driver_log.h"
#include "server/softgpu/memory/address_space.h"
#include "server/softgpu/runtime/device.h"
#include "server/softgpu/runtime/device_access.h"
#include "server/softgpu/runtime/runtime.h"

namespace gpupool::softgpu {
namespace {

CUresult code_of(FaultKind fault) {
  switch (fault) {
    case FaultKind::illegal_address: return CUDA_ERROR_ILLEGAL_ADDRESS;
    case FaultKind::misaligned_address: return CUDA_ERROR_MISALIGNED_ADDRESS;
    case FaultKind::invalid_address_space: return CUDA_ERROR_INVALID_ADDRESS_SPACE;
    case FaultKind::illegal_instruction: return CUDA_ERROR_ILLEGAL_INSTRUCTION;
    case FaultKind::invalid_pc: return CUDA_ERROR_INVALID_PC;
    case FaultKind::hardware_stack: return CUDA_ERROR_HARDWARE_STACK_ERROR;
    case FaultKind::assertion: return CUDA_ERROR_ASSERT;
    default: return CUDA_ERROR_LAUNCH_FAILED;
  }
}

}  // namespace

Function::Function(Ref<Context> context, std::shared_ptr<const Program> program, const KernelInfo& kernel,
                   uint64_t module_handle, uint64_t data_address, std::shared_ptr<FunctionSettings> settings)
    : context_(std::move(context)),
      program_(std::move(program)),
      kernel_(kernel),
      module_handle_(module_handle),
      data_address_(data_address),
      settings_(std::move(settings)),
      loaded_(runtime().config().eager_loading) {}

void Function::load() {
  if (loaded()) return;
  if (runtime().config().rules.enforces(Rule::lazy_loading)) {
    context_->synchronize_locked(costs().price(Cost::kernel_load));
  } else {
    costs().charge(Cost::kernel_load);
  }
  loaded_.store(true, std::memory_order_release);
}

CUresult Function::code(KernelCode* code) {
  load();
  if (!compiled_.load(std::memory_order_acquire)) {
    std::lock_guard guard(code_mutex_);
    if (!compiled_.load(std::memory_order_relaxed)) {
      const auto begin = std::chrono::steady_clock::now();
      auto made = program_->code(kernel_);
      if (const CompileError* error = std::get_if<CompileError>(&made)) {
        fprintf(stderr, "softgpu: %s\n", error->message.c_str());
        cuda::log_for_program(cuda::Severity::error, error->message);
        return CUDA_ERROR_INVALID_PTX;
      }
      code_ = std::get<KernelCode>(made);
      compiled_.store(true, std::memory_order_release);
      if (runtime().config().log) {
        const auto took = std::chrono::steady_clock::now() - begin;
        runtime().log("kernel " + kernel_.name +
                      (program_->came_from_cache(kernel_) ? " loaded from the cache in " : " compiled in ") +
                      std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(took).count()) +
                      " ms");
      }
    }
  }
  *code = code_;
  return CUDA_SUCCESS;
}

namespace {

constexpr size_t kMostWishBytes = size_t{16} << 20, kBytesOfWish = 128;

// Wishes that no program has fulfilled.
struct Wishes {
  std::mutex mutex;
  size_t bytes = 0;                                               // at most kMostWishBytes
  std::multimap<std::string, uint64_t, std::less<>> by_variable;  // equal names: in the order of the wishes
};
Wishes& wishes() {
  static Wishes* const only = new Wishes;
  return *only;
}

// Returns where the program's globals should be, or 0.
uint64_t take_wish(const Program& program) {
  std::lock_guard lock(wishes().mutex);
  for (const GlobalInfo& global : program.globals()) {
    const auto wish = wishes().by_variable.find(global.name);
    if (wish == wishes().by_variable.end()) continue;
    const uint64_t address = wish->second;
    wishes().bytes -= wish->first.size() + kBytesOfWish;
    wishes().by_variable.erase(wish);
    return address - global.offset;
  }
  return 0;
}

}  // namespace

void wish_variable(std::string_view name, uint64_t address) {
  std::lock_guard lock(wishes().mutex);
  const size_t bytes = name.size() + kBytesOfWish;
  if (bytes > kMostWishBytes - wishes().bytes) return;
  wishes().bytes += bytes;
  wishes().by_variable.emplace(name, address);
}

CUresult place_globals(const Program& program, Device& device, uint64_t context, uint64_t* address) {
  const uint64_t size = program.data_bytes();
  *address = 0;
  if (size == 0) return CUDA_SUCCESS;
  const uint64_t wanted = take_wish(program);
  auto memory = wanted != 0 ? device.heap().allocate_at(wanted, size) : std::nullopt;
  if (!memory) memory = device.allocate(size);
  if (!memory) return CUDA_ERROR_OUT_OF_MEMORY;
  program.write_data({reinterpret_cast<std::byte*>(*memory), size}, *memory);
  for (const GlobalInfo& global : program.globals()) {
    if (global.size == 0) continue;
    MemoryRange range;
    range.address = *memory + global.offset;
    range.size = global.size;
    range.kind = global.is_managed ? MemoryKind::module_managed : MemoryKind::module_data;
    range.device = device.index();
    range.context = context;
    runtime().memory().add(range);
  }
  *address = *memory;
  return CUDA_SUCCESS;
}

void remove_globals(const Program& program, Device& device, uint64_t address) {
  for (const GlobalInfo& global : program.globals()) {
    runtime().memory().take(address + global.offset,
                            [](const MemoryRange& range) { return range.is_module(); });
  }
  std::lock_guard access(runtime().memory().access_lock());
  device.heap().free(address);
}

CUresult Module::create(Ref<Context> context, std::shared_ptr<const Program> program, uint64_t data,
                        SettingsOf settings_of, void* user, Ref<Module>* module) {
  Ref<Module> made = Ref<Module>::adopt(new Module(context, std::move(program)));
  made->data_address_ = data;
  if (data == 0) {
    const CUresult result =
        place_globals(*made->program_, context->device(), context->handle(), &made->data_address_);
    if (result != CUDA_SUCCESS) return result;
    made->owns_data_ = made->data_address_ != 0;
  }
  made->handle_ = runtime().handles().add(made);
  bool full = made->handle_ == 0;
  for (const KernelInfo& kernel : made->program_->kernels()) {
    Ref<Function> function = make_ref<Function>(
        context, made->program_, kernel, made->handle_, made->data_address_,
        settings_of == nullptr ? std::make_shared<FunctionSettings>() : settings_of(user, kernel));
    function->handle = runtime().handles().add(function);
    full = full || function->handle == 0;
    made->functions_.emplace(kernel.name, std::move(function));
  }
  if (full) {
    made->unload();
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  context->add_child(made->handle_);
  if (runtime().config().eager_loading)
    costs().occupy_for(costs().price(Cost::kernel_load) * made->functions_.size());
  *module = std::move(made);
  return CUDA_SUCCESS;
}

Ref<Function> Module::function(std::string_view name) {
  std::lock_guard guard(mutex_);
  const auto it = functions_.find(name);
  return it == functions_.end() ? nullptr : it->second;
}

CUresult Module::global(std::string_view name, uint64_t* address, uint64_t* size) const {
  const GlobalInfo* global = program_->find_global(name);
  if (global == nullptr) return CUDA_ERROR_NOT_FOUND;
  *address = data_address_ + global->offset;
  *size = global->size;
  return CUDA_SUCCESS;
}

template <class Reference>
CUresult Module::reference(std::map<std::string, Ref<Reference>, std::less<>>& references, bool surface,
                           std::string_view name, Ref<Reference>* found) {
  std::lock_guard guard(mutex_);
  if (unloaded_) return CUDA_ERROR_INVALID_HANDLE;
  if (const auto known = references.find(name); known != references.end()) {
    *found = known->second;
    return CUDA_SUCCESS;
  }
  for (const ReferenceInfo& info : program_->references()) {
    if (info.name != name || info.is_surface != surface) continue;
    Ref<Reference> made = make_ref<Reference>(reinterpret_cast<uint64_t*>(data_address_ + info.offset));
    made->handle = runtime().handles().add(made);
    if (made->handle == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    references.emplace(info.name, made);
    *found = std::move(made);
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_NOT_FOUND;
}

CUresult Module::reference(std::string_view name, Ref<TextureReference>* found) {
  return reference(textures_, false, name, found);
}
CUresult Module::reference(std::string_view name, Ref<SurfaceReference>* found) {
  return reference(surfaces_, true, name, found);
}

void Module::unload() {
  std::map<std::string, Ref<Function>, std::less<>> functions;
  {
    std::lock_guard guard(mutex_);
    if (unloaded_) return;
    unloaded_ = true;
    functions.swap(functions_);
    for (const auto& [name, texture] : textures_) {
      texture->detach_module();
      runtime().handles().remove<TextureReference>(texture->handle);
    }
    for (const auto& [name, surface] : surfaces_) {
      surface->detach_module();
      runtime().handles().remove<SurfaceReference>(surface->handle);
    }
    textures_.clear();
    surfaces_.clear();
  }
  context_->remove_child(handle_);
  runtime().handles().remove<Module>(handle_);
  for (const auto& [name, function] : functions) runtime().handles().remove<Function>(function->handle);
  if (owns_data_) remove_globals(*program_, context_->device(), data_address_);
}

void GridOp::start() {
  if (const auto address = unreachable_parameter(*context(), function_->kernel(), request_.params))
      [[unlikely]] {
    GridResult fault;
    fault.fault = FaultKind::illegal_address;
    char text[24];
    std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(*address));
    fault.detail = "kernel " + function_->kernel().name + ": parameter " + text +
                   " is an address that its device cannot access";
    return finished(fault);
  }
  // Capture a raw pointer that owns a reference, small enough for std::function to hold without an
  // allocation.
  add_reference();
  context()->device().executor().submit(std::move(request_), [this](const GridResult& result) {
    const Ref<GridOp> self = Ref<GridOp>::adopt(this);
    finished(result);
  });
}

void GridOp::finished(const GridResult& result) {
  if (result.fault != FaultKind::none) {
    context()->fail(code_of(result.fault));
    runtime().log(result.detail);
  }
  complete();
}

}  // namespace gpupool::softgpu
