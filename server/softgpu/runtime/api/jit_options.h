// The options of cuModuleLoadDataEx, cuLibraryLoadData and cuLink*: the logs, the wall time and the number of
// registers take effect, and all others are ignored or refused (protocol/calls/jit_options.h). One thread at
// a time.
#pragma once
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>

#include "protocol/calls/jit_options.h"
#include "protocol/driver/driver_log.h"
#include "server/softgpu/jit/program.h"

namespace gpupool::softgpu::api {

class JitOptions {
 public:
  JitOptions(unsigned count, const CUjit_option* options, void** values)
      : list_{count, options, values}, logs_(list_) {}

  CUresult check() const { return cuda::check_jit_options(list_, logs_); }

  // Per thread; 0: no limit.
  uint32_t max_registers() const { return static_cast<uint32_t>(list_.number(CU_JIT_MAX_REGISTERS)); }

  // Writes the reason of a failure to the program's error log, or to stderr if it gave none.
  void report_failure(const std::string& why) const {
    put_time();
    logs_.info.write({});
    const bool taken = logs_.error.write(why);
    if (why.empty()) return;
    cuda::log_for_program(cuda::Severity::error, why);
    if (!taken) std::fprintf(stderr, "softgpu: %s\n", why.c_str());
  }
  // Writes the info log of a compiled program: its kernels' properties, if CU_JIT_LOG_VERBOSE is set.
  bool report_success(const Program& program) const {
    std::string note;
    if (list_.number(CU_JIT_LOG_VERBOSE) != 0)
      for (const KernelInfo& kernel : program.kernels()) note += properties(kernel);
    return report_success(note);
  }
  // Writes the info log of a successful call; false if the program gave no buffer for it.
  bool report_success(const std::string& note = {}) const {
    put_time();
    logs_.error.write({});
    return logs_.info.write(note);
  }

 private:
  // In the format of NVIDIA's driver.
  static std::string properties(const KernelInfo& kernel) {
    return "info    : Function properties for '" + kernel.name + "':\ninfo    : used " +
           std::to_string(kernel.registers) + " registers, 0 stack, " +
           std::to_string(kernel.static_shared_bytes) + " bytes smem, " +
           std::to_string(kernel.parameter_bytes) + " bytes cmem[0], " + std::to_string(kernel.local_bytes) +
           " bytes lmem\n";
  }
  void put_time() const {
    void** const time = list_.find(CU_JIT_WALL_TIME);
    const float milliseconds =
        std::chrono::duration<float, std::milli>(std::chrono::steady_clock::now() - begin_).count();
    if (time != nullptr) std::memcpy(time, &milliseconds, sizeof milliseconds);
  }

  const cuda::JitOptionList list_;
  mutable cuda::JitLogs logs_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace gpupool::softgpu::api
