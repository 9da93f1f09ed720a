// cuCoredump...: settings are kept and returned, those of a context until it is destroyed or reset. Neither
// library writes core dumps (docs/cuda-abi.md).
#include "protocol/driver/export_tables.h"
#include "protocol/driver/exports.h"

#if CUDA_VERSION >= 12010

#include <limits.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <string>

namespace {

constexpr size_t kTextBytes = 1024;
constexpr int kFlagsAttribute = 7;  // CU_COREDUMP_GENERATION_FLAGS, which older headers lack
constexpr unsigned kKnownFlags = 0x3f;

struct Values {
  std::optional<bool> on_exception, host, lightweight, user_trigger;
  std::optional<std::string> file, pipe;
  std::optional<unsigned> flags;
};

struct Settings {
  std::mutex mutex;
  Values global;
  std::map<CUcontext, Values> of_context;
};
Settings& settings() {
  static Settings* const only = new Settings;
  return *only;
}

// Called when the context is destroyed or reset: its handle may then stand for another context.
void forget(CUcontext context, void*, void*) {
  const std::lock_guard lock(settings().mutex);
  settings().of_context.erase(context);
}

// Requires the mutex.
Values& values_of(CUcontext context) {
  auto& all = settings().of_context;
  const auto [at, made] = all.try_emplace(context);
  if (made && !gpupool::cuda::context_local_storage().put(context, &settings(), nullptr, forget)) {
    all.erase(at);
    throw std::bad_alloc();
  }
  return at->second;
}

std::string default_name(const char* prefix) {
  char host[HOST_NAME_MAX + 1] = "";
  gethostname(host, sizeof host - 1);
  return std::string(prefix) + ".cuda." + host + "." + std::to_string(getpid());
}

CUresult get_bytes(const void* from, size_t bytes, void* value, size_t* size) {
  if (!value) {
    *size = bytes;
    return CUDA_SUCCESS;
  }
  if (*size < bytes) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(value, from, bytes);
  *size = bytes;
  return CUDA_SUCCESS;
}
CUresult get_text(const std::string& text, void* value, size_t* size) {
  if (!value) {
    *size = kTextBytes;
    return CUDA_SUCCESS;
  }
  return get_bytes(text.c_str(), text.size() + 1, value, size);
}

template <class T>
CUresult set_bytes(std::optional<T>& place, const void* value, size_t* size) {
  if (!value) {
    *size = sizeof(T);
    return CUDA_SUCCESS;
  }
  if (*size != sizeof(T)) return CUDA_ERROR_INVALID_VALUE;
  unsigned char bytes[sizeof(T)];
  std::memcpy(bytes, value, sizeof bytes);
  if constexpr (std::is_same_v<T, bool>)
    place = bytes[0] != 0;
  else
    place = *reinterpret_cast<const T*>(value);
  return CUDA_SUCCESS;
}
CUresult set_text(std::optional<std::string>& place, const void* value, size_t* size) {
  if (!value) {
    *size = kTextBytes;
    return CUDA_SUCCESS;
  }
  const size_t length = strnlen(static_cast<const char*>(value), *size);
  if (length >= kTextBytes) return CUDA_ERROR_INVALID_VALUE;
  place = std::string(static_cast<const char*>(value), length);
  return CUDA_SUCCESS;
}

CUresult get(CUcoredumpSettings attribute, void* value, size_t* size, const Values& own,
             const Values& global) {
  const auto flag = [&](auto Values::*member, bool otherwise) {
    const bool found = (own.*member).value_or((global.*member).value_or(otherwise));
    return get_bytes(&found, sizeof found, value, size);
  };
  switch (static_cast<int>(attribute)) {
    case CU_COREDUMP_ENABLE_ON_EXCEPTION: return flag(&Values::on_exception, false);
    case CU_COREDUMP_TRIGGER_HOST: return flag(&Values::host, true);
    case CU_COREDUMP_LIGHTWEIGHT: return flag(&Values::lightweight, false);
    case CU_COREDUMP_ENABLE_USER_TRIGGER: return flag(&Values::user_trigger, false);
    case CU_COREDUMP_FILE:
      return get_text(own.file ? *own.file : global.file ? *global.file : default_name("core"), value, size);
    case CU_COREDUMP_PIPE:
      return get_text(global.pipe ? *global.pipe : default_name("corepipe"), value, size);
    case kFlagsAttribute: {
      const unsigned flags = own.flags.value_or(global.flags.value_or(0));
      return get_bytes(&flags, sizeof flags, value, size);
    }
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult set(CUcoredumpSettings attribute, const void* value, size_t* size, Values& values, bool global) {
  switch (static_cast<int>(attribute)) {
    case CU_COREDUMP_ENABLE_ON_EXCEPTION: return set_bytes(values.on_exception, value, size);
    case CU_COREDUMP_TRIGGER_HOST: return set_bytes(values.host, value, size);
    case CU_COREDUMP_LIGHTWEIGHT: return set_bytes(values.lightweight, value, size);
    case CU_COREDUMP_FILE: return set_text(values.file, value, size);
    case kFlagsAttribute: {
      std::optional<unsigned> wished;
      const CUresult result = set_bytes(wished, value, size);
      if (result != CUDA_SUCCESS || !wished) return result;
      if (*wished & ~kKnownFlags) return CUDA_ERROR_INVALID_VALUE;
      values.flags = wished;
      return CUDA_SUCCESS;
    }
    case CU_COREDUMP_ENABLE_USER_TRIGGER:
      return global ? set_bytes(values.user_trigger, value, size) : CUDA_ERROR_NOT_PERMITTED;
    case CU_COREDUMP_PIPE:  // cannot change while user triggers are enabled
      if (!global || (value && values.user_trigger.value_or(false))) return CUDA_ERROR_NOT_PERMITTED;
      return set_text(values.pipe, value, size);
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

template <class Body>
CUresult guarded(size_t* size, Body&& body) noexcept {
  try {
    if (!size) return CUDA_ERROR_INVALID_VALUE;
    const std::lock_guard lock(settings().mutex);
    return body();
  } catch (const std::bad_alloc&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
}

CUresult current(CUcontext* context) {
  const CUresult result = cuCtxGetCurrent(context);
  if (result != CUDA_SUCCESS) return result;
  return *context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

}  // namespace

CUDA_EXPORT CUresult cuCoredumpGetAttribute(CUcoredumpSettings attribute, void* value, size_t* size) {
  CUcontext context = nullptr;
  if (const CUresult result = current(&context); result != CUDA_SUCCESS) return result;
  return guarded(size, [&] {
    const auto own = settings().of_context.find(context);
    return get(attribute, value, size, own == settings().of_context.end() ? Values{} : own->second,
               settings().global);
  });
}

CUDA_EXPORT CUresult cuCoredumpGetAttributeGlobal(CUcoredumpSettings attribute, void* value, size_t* size) {
  return guarded(size, [&] { return get(attribute, value, size, {}, settings().global); });
}

CUDA_EXPORT CUresult cuCoredumpSetAttribute(CUcoredumpSettings attribute, void* value, size_t* size) {
  CUcontext context = nullptr;
  if (const CUresult result = current(&context); result != CUDA_SUCCESS) return result;
  return guarded(size, [&] { return set(attribute, value, size, values_of(context), false); });
}

CUDA_EXPORT CUresult cuCoredumpSetAttributeGlobal(CUcoredumpSettings attribute, void* value, size_t* size) {
  return guarded(size, [&] { return set(attribute, value, size, settings().global, true); });
}
#endif
