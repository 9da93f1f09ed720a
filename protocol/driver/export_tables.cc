#include "protocol/driver/export_tables.h"

#include <atomic>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <utility>

#include "protocol/driver/validity_check.h"

namespace gpupool::cuda {
namespace {

// The bytes are in the order of CUuuid.
struct TableId {
  unsigned char bytes[16];
  bool operator==(const CUuuid& id) const { return std::memcmp(bytes, id.bytes, sizeof(bytes)) == 0; }
};

constexpr unsigned char nibble(char c) {
  return static_cast<unsigned char>(c >= 'a' ? c - 'a' + 10 : c - '0');
}

// "6bd5fb6c-5bf4-e74a-8987-d93912fd9df9": the text form lists the bytes in order.
consteval TableId table_id(const char (&text)[37]) {
  TableId id{};
  int at = 0;
  for (int i = 0; i < 36; ++i) {
    if (text[i] == '-') continue;
    id.bytes[at++] = static_cast<unsigned char>(nibble(text[i]) << 4 | nibble(text[i + 1]));
    ++i;
  }
  return id;
}

constexpr TableId kCudartInterface = table_id("6bd5fb6c-5bf4-e74a-8987-d93912fd9df9");
constexpr TableId kToolsRuntimeCallbackHooks = table_id("a094798c-2e74-2e74-93f2-0800200c0a66");
constexpr TableId kToolsTls = table_id("42d85a81-23f6-cb47-8298-f6e78a3aecdc");
constexpr TableId kContextLocalStorage = table_id("c693336e-1121-df11-a8c3-68f355d89593");
constexpr TableId kContextChecks = table_id("263e8860-7cd2-6143-92f6-bbd5006dfa7e");
constexpr TableId kIntegrityCheck = table_id("d4082055-bde6-704b-8d34-ba123c66e1f2");
constexpr TableId kToolsContext = table_id("21318c60-9714-3248-8ca6-41ff7324c8f2");
constexpr TableId kToolsModule = table_id("6e163fbe-b958-444d-835c-e182aff1991e");
constexpr TableId kCublasLt = table_id("1734dc26-800d-4745-8726-c0f1e7dd8bca");

// cudart requests this table first of all, and works without it.
constexpr TableId kUnsupportedTable = table_id("f8cff951-2146-8b4e-b9e2-fb469e7c0dd9");

constinit std::atomic<const DriverHooks*> installed_hooks{nullptr};
constinit ContextLocalStorage storage;

// Slots are only reachable through get_export_table(), which installs the hooks first.
const DriverHooks& hooks() {
  return *installed_hooks.load(std::memory_order_acquire);
}

CUresult unsupported() {
  return CUDA_ERROR_NOT_SUPPORTED;
}

// The slots of a table: function pointers, except that slot 0 of most tables is the table's size in bytes.
// The size is that of kSlots unless a caller is known to check it, as cudart 11.8 does with INTEGRITY_CHECK
// (docs/cuda-abi.md).
constexpr size_t kSlots = 64;
struct Table {
  const void* slots[kSlots];

  using Functions = std::initializer_list<std::pair<size_t, const void*>>;
  explicit Table(Functions functions, size_t size = kSlots) {
    for (const void*& slot : slots) slot = reinterpret_cast<const void*>(&unsupported);
    slots[0] = reinterpret_cast<const void*>(size * sizeof(slots[0]));
    for (const auto& [slot, function] : functions) slots[slot] = function;
  }
};

template <typename Function>
const void* entry(Function* function) {
  return reinterpret_cast<const void*>(function);
}

CUresult primary_context_without_retain(CUcontext* context, CUdevice device) {
  return context == nullptr ? CUDA_ERROR_INVALID_VALUE : hooks().primary_context(device, context);
}

// Loads a program's fat binary for cudart 11. The other arguments are the runtime's own bookkeeping, which is
// empty for images made by nvcc.
CUresult load_fat_binary(CUmodule* module, const void* wrapper, const void*, const void*, uint32_t) {
  if (module == nullptr || wrapper == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return hooks().load_module(module, wrapper);
}

// Runtimes from CUDA 13.1 on call this once, after cuInit, without arguments. They fail to start if it
// returns an error.
CUresult accept_runtime() {
  return CUDA_SUCCESS;
}

CUresult current_context(CUcontext* context) {
  return context == nullptr ? CUDA_ERROR_INVALID_VALUE : hooks().current_context(context);
}

// The callbacks that a profiler has enabled: none. One array is for the runtime's functions, indexed by
// CUPTI's callback ids (CUDA 13.5's runtime expects 567), one for its resources.
constinit uint32_t runtime_callbacks[1024] = {};
constinit uint32_t resource_callbacks[64] = {};

CUresult runtime_callback_array(uint32_t** enabled, size_t* count) {
  if (enabled == nullptr || count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *enabled = runtime_callbacks;
  *count = std::size(runtime_callbacks);
  return CUDA_SUCCESS;
}

CUresult resource_callback_array(uint32_t** enabled, size_t* count) {
  if (enabled == nullptr || count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *enabled = resource_callbacks;
  *count = std::size(resource_callbacks);
  return CUDA_SUCCESS;
}

// A null context stands for the current one.
CUresult resolve(CUcontext& context) {
  if (context != nullptr) return CUDA_SUCCESS;
  if (const CUresult result = hooks().current_context(&context); result != CUDA_SUCCESS) return result;
  return context == nullptr ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

CUresult storage_put(CUcontext context, void* key, void* value, ContextLocalStorage::Destructor destructor) {
  if (const CUresult result = resolve(context); result != CUDA_SUCCESS) return result;
  return storage.put(context, key, value, destructor) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult storage_delete(CUcontext context, void* key) {
  if (const CUresult result = resolve(context); result != CUDA_SUCCESS) return result;
  return storage.remove(context, key) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult storage_get(void** value, CUcontext context, void* key) {
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = resolve(context); result != CUDA_SUCCESS) return result;
  return storage.get(context, key, value) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult context_check(CUcontext, uint32_t* finding, const void**) {
  if (finding != nullptr) *finding = 0;
  return CUDA_SUCCESS;
}

CUresult nothing_to_check() {
  return CUDA_SUCCESS;
}

CUresult context_id(CUcontext context, unsigned long long* id) {
  if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = resolve(context); result != CUDA_SUCCESS) return result;
  return hooks().context_id(context, id);
}

CUresult stream_object(CUcontext context, CUstream stream, void** object) {
  if (object == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (hooks().stream_object != nullptr) return hooks().stream_object(context, stream, object);
  static constinit char default_stream = 0;
  *object = stream != nullptr ? static_cast<void*>(stream) : &default_stream;
  return CUDA_SUCCESS;
}

CUresult stream_object_state(CUcontext, void*, uint64_t* state) {
  if (state != nullptr) *state = 0;
  return CUDA_SUCCESS;
}

using FunctionCallback = void (*)(void* user, CUfunction function, uint64_t);

// Returns the number of functions, not a CUresult. cuFFT's modules have one function, and it accepts no other
// number as success.
int enumerate_functions(CUcontext context, CUmodule module, FunctionCallback callback, void* user) {
  if (callback == nullptr) return 0;
  struct Visit {
    FunctionCallback callback;
    void* user;
    int count;
  } visit{callback, user, 0};
  const CUresult result = hooks().enumerate_functions(
      context, module,
      [](void* self, CUfunction function) {
        Visit& visit = *static_cast<Visit*>(self);
        visit.callback(visit.user, function, 0);
        ++visit.count;
      },
      &visit);
  return result == CUDA_SUCCESS ? visit.count : 0;
}

CUresult two_values(uint64_t*, uint64_t*) {
  return CUDA_SUCCESS;
}  // leaves the caller's zeros

CUresult integrity_check(uint32_t version, uint64_t seconds, uint64_t result[2]);

struct Tables {
  Table cudart_interface{{{2, entry(&primary_context_without_retain)},
                          {6, entry(&load_fat_binary)},
                          {12, entry(&accept_runtime)}}};
  Table tools_runtime_callback_hooks{
      {{2, entry(&runtime_callback_array)}, {6, entry(&resource_callback_array)}}};
  Table tools_tls{{{2, entry(&current_context)}}};
  Table context_local_storage{
      {{0, entry(&storage_put)}, {1, entry(&storage_delete)}, {2, entry(&storage_get)}}};
  Table context_checks{{{2, entry(&context_check)}, {3, entry(&nothing_to_check)}}};
  Table integrity_check{{{1, kValidityCheckBuiltIn ? entry(&cuda::integrity_check) : entry(&unsupported)}},
                        3};
  Table tools_context{
      {{4, entry(&context_id)}, {39, entry(&stream_object_state)}, {51, entry(&stream_object)}}};
  Table tools_module{{{7, entry(&enumerate_functions)}}};
  Table cublas_lt{{{4, entry(&two_values)}}};
  Table unknown{Table::Functions{}};
};

// Made at the first request, and never destroyed: exit handlers may request tables.
const Tables& tables() {
  alignas(Tables) static unsigned char memory[sizeof(Tables)];
  static const Tables* const made = new (memory) Tables;
  return *made;
}

CUresult integrity_check(uint32_t version, uint64_t seconds, uint64_t result[2]) {
  if (result == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Tables& all = tables();
  return answer_validity_check(version, seconds,
                               {.cudart_interface = all.cudart_interface.slots,
                                .integrity_check = all.integrity_check.slots,
                                .function = all.integrity_check.slots[1]},
                               hooks(), result);
}

}  // namespace

ContextLocalStorage& context_local_storage() {
  return storage;
}

CUresult get_export_table(const void** table, const CUuuid* id, const DriverHooks& driver_hooks) {
  if (table == nullptr || id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *table = nullptr;
  if (kUnsupportedTable == *id) return CUDA_ERROR_INVALID_VALUE;
  installed_hooks.store(&driver_hooks, std::memory_order_release);
  const Tables& all = tables();
  const std::pair<const TableId&, const Table&> known[] = {
      {kCudartInterface, all.cudart_interface},
      {kToolsRuntimeCallbackHooks, all.tools_runtime_callback_hooks},
      {kToolsTls, all.tools_tls},
      {kContextLocalStorage, all.context_local_storage},
      {kContextChecks, all.context_checks},
      {kIntegrityCheck, all.integrity_check},
      {kToolsContext, all.tools_context},
      {kToolsModule, all.tools_module},
      {kCublasLt, all.cublas_lt},
  };
  for (const auto& [known_id, known_table] : known) {
    if (known_id == *id) {
      *table = known_table.slots;
      return CUDA_SUCCESS;
    }
  }
  *table = all.unknown.slots;
  return CUDA_SUCCESS;
}

}  // namespace gpupool::cuda
