// Logs, core dumps and notifications.
#define __CUDA_API_VERSION_INTERNAL  // declares every version under its own name
#include <cuda.h>

#include <cstdio>
#include <cstring>

#include "tests/parity/show.h"

namespace parity {

namespace {

constexpr char kBroken[] =
    ".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry broken() { nonsense; }\n";

void count_errors(void* calls, CUlogLevel level, char* message, size_t length) {
  if (level == CU_LOG_LEVEL_ERROR && length > 0 && std::strlen(message) == length)
    ++*static_cast<int*>(calls);
}

// Call this when the primary context has a file and flags of its own, and dumps are enabled for all contexts.
void expect_default_dump_settings_after_reset() {
  CUcontext context = nullptr;
  char file[2048];
  bool enabled = false;
  unsigned flags = 9;
  REQUIRE(CUDA_SUCCESS, cuDevicePrimaryCtxReset(0));
  REQUIRE(CUDA_SUCCESS, cuDevicePrimaryCtxRetain(&context, 0));
  REQUIRE(CUDA_SUCCESS, cuCtxSetCurrent(context));
  size_t size = sizeof file;
  REQUIRE(CUDA_SUCCESS, cuCoredumpGetAttribute(CU_COREDUMP_FILE, file, &size));
  EXPECT(std::strncmp(file, "core.cuda.", 10) == 0);
  size = sizeof flags;
  REQUIRE(CUDA_SUCCESS, cuCoredumpGetAttribute(CU_COREDUMP_GENERATION_FLAGS, &flags, &size));
  EXPECT(flags == 0);
  size = sizeof enabled;
  REQUIRE(CUDA_SUCCESS, cuCoredumpGetAttribute(CU_COREDUMP_ENABLE_ON_EXCEPTION, &enabled, &size));
  EXPECT(enabled);
}

void core_dump_settings() {
  char text[2048] = "";
  size_t size = 0;
  bool yes = true, seen = false;
  unsigned flags = 9;
  size = sizeof yes;
  REQUIRE(CUDA_SUCCESS, cuCoredumpGetAttributeGlobal(CU_COREDUMP_ENABLE_ON_EXCEPTION, &seen, &size));
  EXPECT(!seen);  // the default
  REQUIRE(CUDA_SUCCESS, cuCoredumpSetAttributeGlobal(CU_COREDUMP_ENABLE_ON_EXCEPTION, &yes, &size));
  REQUIRE(CUDA_SUCCESS, cuCoredumpGetAttribute(CU_COREDUMP_ENABLE_ON_EXCEPTION, &seen, &size));
  EXPECT(seen);
  yes = false;
  REQUIRE(CUDA_SUCCESS, cuCoredumpSetAttribute(CU_COREDUMP_ENABLE_ON_EXCEPTION, &yes, &size));
  REQUIRE(CUDA_SUCCESS, cuCoredumpGetAttribute(CU_COREDUMP_ENABLE_ON_EXCEPTION, &seen, &size));
  EXPECT(!seen);
  REQUIRE(CUDA_SUCCESS, cuCoredumpGetAttributeGlobal(CU_COREDUMP_ENABLE_ON_EXCEPTION, &seen, &size));
  EXPECT(seen);  // the context's own setting does not change the global one
  SHOW(cuCoredumpSetAttribute(CU_COREDUMP_PIPE, text, &size));
  SHOW(cuCoredumpSetAttribute(CU_COREDUMP_ENABLE_USER_TRIGGER, &yes, &size));
  for (int id = 0; id < 9; ++id) {
    size = 0;
    const CUresult result = cuCoredumpGetAttribute(static_cast<CUcoredumpSettings>(id), nullptr, &size);
    std::printf("dump attribute %d -> %s %zu\n", id, name_of(result), size);
  }
  size = sizeof flags;
  SHOW_VALUE(cuCoredumpGetAttribute(CU_COREDUMP_GENERATION_FLAGS, &flags, &size), "%u", flags);
  flags = CU_COREDUMP_LIGHTWEIGHT_FLAGS;
  REQUIRE(CUDA_SUCCESS, cuCoredumpSetAttribute(CU_COREDUMP_GENERATION_FLAGS, &flags, &size));
  flags = 0;
  REQUIRE(CUDA_SUCCESS, cuCoredumpGetAttribute(CU_COREDUMP_GENERATION_FLAGS, &flags, &size));
  EXPECT(flags == CU_COREDUMP_LIGHTWEIGHT_FLAGS);
  flags = 0xff00;
  SHOW(cuCoredumpSetAttribute(CU_COREDUMP_GENERATION_FLAGS, &flags, &size));
  size = 1;
  SHOW(cuCoredumpGetAttribute(CU_COREDUMP_GENERATION_FLAGS, &flags, &size));
  char name[] = "my.dump";
  size = sizeof name;
  SHOW(cuCoredumpSetAttribute(CU_COREDUMP_FILE, name, &size));
  size = sizeof text;
  REQUIRE(CUDA_SUCCESS, cuCoredumpGetAttribute(CU_COREDUMP_FILE, text, &size));
  EXPECT(std::strcmp(text, name) == 0);
  size = 3;
  SHOW(cuCoredumpGetAttribute(CU_COREDUMP_FILE, text, &size));
  SHOW(cuCoredumpGetAttribute(CU_COREDUMP_FILE, text, nullptr));
  expect_default_dump_settings_after_reset();
}

}  // namespace

void logs_and_dumps() {
  CUlogsCallbackHandle callback = nullptr;
  CUlogIterator iterator = 99, begin = 0;
  static int calls = 0, others = 0;
  char text[2048];
  size_t size = sizeof text;
  CUmodule module = nullptr;
  REQUIRE(CUDA_SUCCESS, cuLogsRegisterCallback(count_errors, &calls, &callback));
  REQUIRE(CUDA_SUCCESS, cuLogsRegisterCallback(count_errors, &others, nullptr));  // the handle is optional
  SHOW(cuLogsRegisterCallback(nullptr, nullptr, &callback));
  REQUIRE(CUDA_SUCCESS, cuLogsCurrent(&begin, 0));
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuLogsCurrent(nullptr, 0));
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuLogsCurrent(&iterator, 1));
  iterator = begin;
  REQUIRE(CUDA_SUCCESS, cuLogsDumpToMemory(&iterator, text, &size, 0));
  EXPECT(size == 0);  // no messages yet
  SHOW(cuModuleLoadData(&module, kBroken));
  size = sizeof text;
  REQUIRE(CUDA_SUCCESS, cuLogsDumpToMemory(&iterator, text, &size, 0));
  EXPECT(size > 20 && size == std::strlen(text) && text[size - 1] == '\n');
  EXPECT(calls > 0 && others == calls);
  EXPECT(iterator != begin);  // past the messages read
  size = sizeof text;
  REQUIRE(CUDA_SUCCESS, cuLogsDumpToMemory(&iterator, text, &size, 0));
  EXPECT(size == 0);
  iterator = begin;
  size = 4;
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuLogsDumpToMemory(&iterator, text, &size, 0));  // no message fits
  EXPECT(size == 0);
  SHOW(cuLogsDumpToMemory(nullptr, nullptr, &size, 0));
  SHOW(cuLogsDumpToMemory(nullptr, text, &size, 3));
  SHOW(cuLogsDumpToFile(&iterator, nullptr, 0));
  SHOW(cuLogsDumpToFile(&iterator, "/no/such/folder/file", 0));
  const std::string path = temporary_file("log");
  REQUIRE(CUDA_SUCCESS, cuLogsDumpToFile(&iterator, path.c_str(), 0));
  EXPECT(content_of(path).size() > 20);
  std::remove(path.c_str());
  REQUIRE(CUDA_SUCCESS, cuLogsCurrent(&begin, 0));
  EXPECT(begin == iterator);
  REQUIRE(CUDA_SUCCESS, cuLogsUnregisterCallback(callback));
  const int before = calls;
  cuModuleLoadData(&module, kBroken);
  EXPECT(calls == before && others > before);
  SHOW(cuLogsUnregisterCallback(callback));
  core_dump_settings();
  CUasyncCallbackHandle notification = nullptr;
  SHOW(cuDeviceRegisterAsyncNotification(
      0, [](CUasyncNotificationInfo*, void*, CUasyncCallbackHandle) {}, nullptr, &notification));
  SHOW(cuDeviceRegisterAsyncNotification(
      9, [](CUasyncNotificationInfo*, void*, CUasyncCallbackHandle) {}, nullptr, &notification));
  SHOW(cuDeviceRegisterAsyncNotification(0, nullptr, nullptr, &notification));
  SHOW(cuDeviceUnregisterAsyncNotification(0, nullptr));
  SHOW(cuDeviceUnregisterAsyncNotification(0, notification));
  SHOW(cuDeviceUnregisterAsyncNotification(0, notification));
}

}  // namespace parity
