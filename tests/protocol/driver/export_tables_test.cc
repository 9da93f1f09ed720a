#include "protocol/driver/export_tables.h"

#include <cstring>
#include <string_view>
#include <vector>

#include "protocol/driver/validity_check.h"
#include "tests/support/catch.h"

namespace cuda = gpupool::cuda;

namespace {

CUcontext current = nullptr;
int device_count = 2;

const CUcontext kPrimary = reinterpret_cast<CUcontext>(0x1000);
const CUcontext kOther = reinterpret_cast<CUcontext>(0x2000);

const cuda::DriverHooks kHooks = {
    .primary_context =
        [](CUdevice device, CUcontext* context) {
          if (device != 1) return CUDA_ERROR_INVALID_DEVICE;
          *context = kPrimary;
          return CUDA_SUCCESS;
        },
    .current_context =
        [](CUcontext* context) {
          *context = current;
          return CUDA_SUCCESS;
        },
    .context_id =
        [](CUcontext context, unsigned long long* id) {
          *id = context == kOther ? 22 : 11;
          return CUDA_SUCCESS;
        },
    .enumerate_functions =
        [](CUcontext, CUmodule, void (*visit)(void*, CUfunction), void* user) {
          visit(user, reinterpret_cast<CUfunction>(0x10));
          visit(user, reinterpret_cast<CUfunction>(0x20));
          return CUDA_SUCCESS;
        },
    .load_module =
        [](CUmodule* module, const void* image) {
          *module = reinterpret_cast<CUmodule>(reinterpret_cast<uintptr_t>(image) + 1);
          return CUDA_SUCCESS;
        },
    .stream_object = nullptr,
    .driver_version =
        [](int* version) {
          *version = 13000;
          return CUDA_SUCCESS;
        },
    .device_count =
        [](int* count) {
          *count = device_count;
          return CUDA_SUCCESS;
        },
    .device_identity =
        [](CUdevice device, cuda::DeviceIdentity* identity) {
          std::memset(identity->uuid, 7 + device, sizeof(identity->uuid));
          identity->pci_bus = device;
          return CUDA_SUCCESS;
        },
};

CUuuid uuid(std::string_view text) {
  CUuuid id{};
  size_t digits = 0;
  for (char c : text) {
    if (c == '-') continue;
    const int value = c >= 'a' ? c - 'a' + 10 : c - '0';
    char& byte = id.bytes[digits / 2];
    byte = static_cast<char>(digits % 2 == 0 ? value << 4 : (static_cast<unsigned char>(byte) | value));
    ++digits;
  }
  return id;
}

const void* const* table(std::string_view text) {
  const CUuuid id = uuid(text);
  const void* slots = nullptr;
  REQUIRE(cuda::get_export_table(&slots, &id, kHooks) == CUDA_SUCCESS);
  REQUIRE(slots != nullptr);
  return static_cast<const void* const*>(slots);
}

template <typename... Arguments>
CUresult call(const void* const* slots, size_t slot, Arguments... arguments) {
  return reinterpret_cast<CUresult (*)(Arguments...)>(const_cast<void*>(slots[slot]))(arguments...);
}

size_t size_of(const void* const* slots) {
  return reinterpret_cast<size_t>(slots[0]);
}

void count_destroyed(CUcontext context, void* key, void* value) {
  CHECK(context == kPrimary);
  CHECK(key == static_cast<void*>(&current));
  ++*static_cast<int*>(value);
}

}  // namespace

TEST_CASE("the runtime's own tables") {
  const auto* cudart = table("6bd5fb6c-5bf4-e74a-8987-d93912fd9df9");
  CUcontext context = nullptr;
  CHECK(size_of(cudart) > 2 * sizeof(void*));
  CHECK(call<CUcontext*, CUdevice>(cudart, 2, &context, 1) == CUDA_SUCCESS);
  CHECK(context == kPrimary);
  CHECK(call<CUcontext*, CUdevice>(cudart, 2, &context, 5) == CUDA_ERROR_INVALID_DEVICE);
  CHECK(call<CUcontext*, CUdevice>(cudart, 2, nullptr, 1) == CUDA_ERROR_INVALID_VALUE);

  CUmodule module = nullptr;
  const void* const image = reinterpret_cast<const void*>(0x3000);
  const auto load = [cudart](CUmodule* loaded, const void* wrapper) {
    return call<CUmodule*, const void*, const void*, const void*, uint32_t>(cudart, 6, loaded, wrapper,
                                                                            nullptr, nullptr, 0);
  };
  CHECK(load(&module, image) == CUDA_SUCCESS);
  CHECK(module == reinterpret_cast<CUmodule>(0x3001));
  CHECK(load(&module, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(load(nullptr, image) == CUDA_ERROR_INVALID_VALUE);
  CHECK(call(cudart, 12) == CUDA_SUCCESS);  // called first by CUDA 13.1 and newer
  CHECK(call(cudart, 13) == CUDA_ERROR_NOT_SUPPORTED);

  const auto* callbacks = table("a094798c-2e74-2e74-93f2-0800200c0a66");
  for (const auto& [slot, least] : {std::pair<size_t, size_t>{2, 567}, {6, 14}}) {
    uint32_t* enabled = nullptr;
    size_t count = 0;
    CHECK(call<uint32_t**, size_t*>(callbacks, slot, &enabled, &count) == CUDA_SUCCESS);
    REQUIRE(count >= least);
    for (size_t i = 0; i < count; ++i) CHECK(enabled[i] == 0);
  }

  const auto* tls = table("42d85a81-23f6-cb47-8298-f6e78a3aecdc");
  current = kOther;
  CHECK(call<CUcontext*>(tls, 2, &context) == CUDA_SUCCESS);
  CHECK(context == kOther);
  current = nullptr;

  const auto* checks = table("263e8860-7cd2-6143-92f6-bbd5006dfa7e");
  uint32_t finding = 5;
  const void* detail = nullptr;
  CHECK(call<CUcontext, uint32_t*, const void**>(checks, 2, kPrimary, &finding, &detail) == CUDA_SUCCESS);
  CHECK(finding == 0);
  CHECK(call(checks, 3) == CUDA_SUCCESS);
}

TEST_CASE("context-local storage through its table") {
  using Destructor = cuda::ContextLocalStorage::Destructor;
  const auto* slots = table("c693336e-1121-df11-a8c3-68f355d89593");
  void* key = &current;
  int destroyed = 0;
  void* value = nullptr;
  const auto put = [&](CUcontext context) {
    return call<CUcontext, void*, void*, Destructor>(slots, 0, context, key, &destroyed, count_destroyed);
  };
  const auto get = [&](CUcontext context) {
    return call<void**, CUcontext, void*>(slots, 2, &value, context, key);
  };

  current = nullptr;
  CHECK(put(nullptr) == CUDA_ERROR_INVALID_CONTEXT);  // null is the current context, and there is none
  CHECK(get(kPrimary) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(put(kPrimary) == CUDA_SUCCESS);
  CHECK(get(kPrimary) == CUDA_SUCCESS);
  CHECK(value == &destroyed);
  CHECK(get(kOther) == CUDA_ERROR_INVALID_HANDLE);
  current = kPrimary;
  value = nullptr;
  CHECK(get(nullptr) == CUDA_SUCCESS);
  CHECK(value == &destroyed);
  current = nullptr;

  CHECK(call<CUcontext, void*>(slots, 1, kPrimary, key) == CUDA_SUCCESS);
  CHECK(get(kPrimary) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(call<CUcontext, void*>(slots, 1, kPrimary, key) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(destroyed == 0);

  CHECK(put(kPrimary) == CUDA_SUCCESS);
  cuda::context_local_storage().destroy_context(kPrimary);
  CHECK(destroyed == 1);
  CHECK(get(kPrimary) == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("the libraries' tables") {
  const auto* context_tools = table("21318c60-9714-3248-8ca6-41ff7324c8f2");
  CHECK(size_of(context_tools) > 51 * sizeof(void*));
  unsigned long long id = 0;
  CHECK(call<CUcontext, unsigned long long*>(context_tools, 4, kOther, &id) == CUDA_SUCCESS);
  CHECK(id == 22);
  void* object = nullptr;
  CHECK(call<CUcontext, CUstream, void**>(context_tools, 51, kPrimary, nullptr, &object) == CUDA_SUCCESS);
  CHECK(object != nullptr);
  uint64_t state = 9;
  CHECK(call<CUcontext, void*, uint64_t*>(context_tools, 39, kPrimary, object, &state) == CUDA_SUCCESS);
  CHECK(state == 0);

  const auto* module_tools = table("6e163fbe-b958-444d-835c-e182aff1991e");
  std::vector<CUfunction> functions;
  using Callback = void (*)(void*, CUfunction, uint64_t);
  const Callback collect = [](void* user, CUfunction function, uint64_t) {
    static_cast<std::vector<CUfunction>*>(user)->push_back(function);
  };
  CHECK(call<CUcontext, CUmodule, Callback, void*>(module_tools, 7, kPrimary, nullptr, collect, &functions) ==
        2);  // the number of functions
  REQUIRE(functions.size() == 2);
  CHECK(functions[1] == reinterpret_cast<CUfunction>(0x20));

  const auto* cublas_lt = table("1734dc26-800d-4745-8726-c0f1e7dd8bca");
  uint64_t first = 0;
  uint64_t second = 0;
  CHECK(call<uint64_t*, uint64_t*>(cublas_lt, 4, &first, &second) == CUDA_SUCCESS);
  CHECK(first + second == 0);
}

TEST_CASE("unknown export tables are returned with functions that fail") {
  const auto* unknown = table("00112233-4455-6677-8899-aabbccddeeff");
  for (size_t slot = 1; slot < size_of(unknown) / sizeof(void*); ++slot) {
    CHECK(call(unknown, slot) == CUDA_ERROR_NOT_SUPPORTED);
  }
  CHECK(size_of(unknown) / sizeof(void*) >= 52);  // a later runtime requests TOOLS_CONTEXT alone
  // Slots of known tables without a known user.
  CHECK(call(table("6bd5fb6c-5bf4-e74a-8987-d93912fd9df9"), 5) == CUDA_ERROR_NOT_SUPPORTED);

  const CUuuid refused = uuid("f8cff951-2146-8b4e-b9e2-fb469e7c0dd9");
  const void* slots = &refused;
  CHECK(cuda::get_export_table(&slots, &refused, kHooks) == CUDA_ERROR_INVALID_VALUE);
  CHECK(slots == nullptr);
  CHECK(cuda::get_export_table(nullptr, &refused, kHooks) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuda::get_export_table(&slots, nullptr, kHooks) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("the validity check") {
  const auto* slots = table("d4082055-bde6-704b-8d34-ba123c66e1f2");
  const auto ask = [&](uint32_t version, uint64_t seconds, uint64_t* result) {
    return call<uint32_t, uint64_t, uint64_t*>(slots, 1, version, seconds, result);
  };
  uint64_t result[2] = {};
  CHECK(size_of(slots) == 3 * sizeof(void*));  // cudart 11.8 fails with error 103 if it is larger
#ifdef GPUPOOL_CUDART_VALIDITY_CHECK
  CHECK(ask(13000, 5, result) == CUDA_SUCCESS);
  CHECK(result[0] == 0x3341181C03CB675C);
  CHECK(result[1] == 0x8ED383AA1F4CD1E8);
  CHECK(ask(13001, 5, result) == CUDA_SUCCESS);
  CHECK(result[0] == 0x1841181C03CB675C);
  // The third answer depends only on the process, the time and the devices.
  uint64_t again[2] = {};
  CHECK(ask(13002, 5, result) == CUDA_SUCCESS);
  CHECK(ask(13002, 5, again) == CUDA_SUCCESS);
  CHECK(std::memcmp(result, again, sizeof(result)) == 0);
  CHECK(ask(13002, 6, again) == CUDA_SUCCESS);
  CHECK(std::memcmp(result, again, sizeof(result)) != 0);
  device_count = 1;
  CHECK(ask(13002, 5, again) == CUDA_SUCCESS);
  CHECK(std::memcmp(result, again, sizeof(result)) != 0);
  device_count = 2;
  CHECK(ask(13002, 5, nullptr) == CUDA_ERROR_INVALID_VALUE);
#else
  CHECK(ask(13000, 5, result) == CUDA_ERROR_NOT_SUPPORTED);
#endif
}
