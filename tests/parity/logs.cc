// Logs, core dumps and notifications.
#define __CUDA_API_VERSION_INTERNAL  // every version under its own name
#include <cuda.h>

#include <cstring>

#include "tests/parity/show.h"

namespace parity {

void logs_and_dumps() {
  CUlogsCallbackHandle callback = nullptr;
  CUlogIterator iterator = 99, begin = 0;
  static int calls = 0;
  char text[2048];
  size_t size = sizeof text;
  CUmodule module = nullptr;
  SHOW(cuLogsRegisterCallback([](void*, CUlogLevel level, char* message, size_t length) { calls += level == CU_LOG_LEVEL_ERROR && std::strlen(message) == length; },
                              nullptr, &callback));
  SHOW(cuLogsRegisterCallback(nullptr, nullptr, &callback));
  SHOW(cuLogsCurrent(&begin, 0));
  SHOW(cuLogsCurrent(nullptr, 0));
  SHOW(cuLogsCurrent(&iterator, 1));
  iterator = begin;
  SHOW_VALUE(cuLogsDumpToMemory(&iterator, text, &size, 0), "%zu", size);
  SHOW(cuModuleLoadData(&module, ".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry broken() { nonsense; }\n"));
  size = sizeof text;
  SHOW_VALUE(cuLogsDumpToMemory(&iterator, text, &size, 0), "%d", size > 20 && size == std::strlen(text) && text[size - 1] == '\n');
  std::printf("called %d\n", calls > 0);
  size = sizeof text;
  SHOW_VALUE(cuLogsDumpToMemory(&iterator, text, &size, 0), "%zu", size);
  iterator = begin;
  size = 4;
  SHOW(cuLogsDumpToMemory(&iterator, text, &size, 0));
  std::printf("size %zu\n", size);
  SHOW(cuLogsDumpToMemory(nullptr, nullptr, &size, 0));
  SHOW(cuLogsDumpToMemory(nullptr, text, &size, 3));
  SHOW(cuLogsDumpToFile(&iterator, nullptr, 0));
  SHOW(cuLogsDumpToFile(&iterator, "/no/such/folder/file", 0));
  SHOW(cuLogsDumpToFile(&iterator, "/dev/null", 0));
  SHOW_VALUE(cuLogsCurrent(&begin, 0), "%d", begin == iterator);
  SHOW(cuLogsUnregisterCallback(callback));
  SHOW(cuLogsUnregisterCallback(callback));
  bool yes = true, seen = false;
  unsigned flags = 9;
  size = sizeof yes;
  SHOW_VALUE(cuCoredumpGetAttributeGlobal(CU_COREDUMP_ENABLE_ON_EXCEPTION, &seen, &size), "%d", seen);
  SHOW(cuCoredumpSetAttributeGlobal(CU_COREDUMP_ENABLE_ON_EXCEPTION, &yes, &size));
  SHOW_VALUE(cuCoredumpGetAttribute(CU_COREDUMP_ENABLE_ON_EXCEPTION, &seen, &size), "%d", seen);
  yes = false;
  SHOW(cuCoredumpSetAttribute(CU_COREDUMP_ENABLE_ON_EXCEPTION, &yes, &size));
  SHOW_VALUE(cuCoredumpGetAttribute(CU_COREDUMP_ENABLE_ON_EXCEPTION, &seen, &size), "%d", seen);
  SHOW_VALUE(cuCoredumpGetAttributeGlobal(CU_COREDUMP_ENABLE_ON_EXCEPTION, &seen, &size), "%d", seen);
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
  SHOW(cuCoredumpSetAttribute(CU_COREDUMP_GENERATION_FLAGS, &flags, &size));
  SHOW_VALUE(cuCoredumpGetAttribute(CU_COREDUMP_GENERATION_FLAGS, &flags, &size), "%u", flags);
  flags = 0xff00;
  SHOW(cuCoredumpSetAttribute(CU_COREDUMP_GENERATION_FLAGS, &flags, &size));
  size = 1;
  SHOW(cuCoredumpGetAttribute(CU_COREDUMP_GENERATION_FLAGS, &flags, &size));
  char name[] = "my.dump";
  size = sizeof name;
  SHOW(cuCoredumpSetAttribute(CU_COREDUMP_FILE, name, &size));
  size = sizeof text;
  SHOW_VALUE(cuCoredumpGetAttribute(CU_COREDUMP_FILE, text, &size), "%s", text);
  size = 3;
  SHOW(cuCoredumpGetAttribute(CU_COREDUMP_FILE, text, &size));
  SHOW(cuCoredumpGetAttribute(CU_COREDUMP_FILE, text, nullptr));
  CUasyncCallbackHandle notification = nullptr;
  SHOW(cuDeviceRegisterAsyncNotification(0, [](CUasyncNotificationInfo*, void*, CUasyncCallbackHandle) {}, nullptr, &notification));
  SHOW(cuDeviceRegisterAsyncNotification(9, [](CUasyncNotificationInfo*, void*, CUasyncCallbackHandle) {}, nullptr, &notification));
  SHOW(cuDeviceRegisterAsyncNotification(0, nullptr, nullptr, &notification));
  SHOW(cuDeviceUnregisterAsyncNotification(0, nullptr));
  SHOW(cuDeviceUnregisterAsyncNotification(0, notification));
  SHOW(cuDeviceUnregisterAsyncNotification(0, notification));
}

}  // namespace parity
