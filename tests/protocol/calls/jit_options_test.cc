// Tests the checks of JIT options and the logs as NVIDIA's driver returns them.
#include "protocol/calls/jit_options.h"

#include <string>
#include <vector>

#include "tests/support/catch.h"

using namespace gpupool::cuda;

namespace {

void* option_value(size_t number) {
  return reinterpret_cast<void*>(static_cast<uintptr_t>(number));
}

// The options of a program that asks for both logs.
struct Asked {
  explicit Asked(size_t room, bool buffers = true) {
    for (std::string* log : {&info, &error}) log->assign(64, 'x');
    options = {CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, CU_JIT_ERROR_LOG_BUFFER,
               CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    values = {buffers ? info.data() : nullptr, option_value(room), buffers ? error.data() : nullptr,
              option_value(room)};
  }
  JitOptionList list() { return {static_cast<unsigned>(options.size()), options.data(), values.data()}; }
  size_t written_info() const { return reinterpret_cast<uintptr_t>(values[1]); }
  size_t written_error() const { return reinterpret_cast<uintptr_t>(values[3]); }

  std::string info, error;
  std::vector<CUjit_option> options;
  std::vector<void*> values;
};

CUresult check(const JitOptionList& list) {
  return check_jit_options(list, JitLogs(list));
}
CUresult check(unsigned option, size_t number = 0) {
  const CUjit_option one = static_cast<CUjit_option>(option);
  void* values[] = {option_value(number)};
  return check({1, &one, values});
}

}  // namespace

TEST_CASE("an empty log is an empty string of length 0 whatever the size of its buffer") {
  for (const size_t room : {0, 1, 20, 64}) {
    Asked asked(room);
    JitLogs logs(asked.list());
    CHECK(logs.info.write(""));
    CHECK(logs.error.write(""));
    CHECK(asked.info[0] == '\0');
    CHECK(asked.info[1] == 'x');
    CHECK(asked.error[0] == '\0');
    CHECK(asked.written_info() == 0);
    CHECK(asked.written_error() == 0);
  }
}

TEST_CASE("a log is cut to its buffer and ends with a NUL") {
  const std::string text = "line 6; error: unknown opcode";
  Asked large(64);
  CHECK(JitLogs(large.list()).error.write(text));
  CHECK(large.error.c_str() == text);
  CHECK(large.written_error() == text.size());
  Asked small(20);
  CHECK(JitLogs(small.list()).error.write(text));
  CHECK(small.error.c_str() == text.substr(0, 19));
  CHECK(small.error[20] == 'x');
  CHECK(small.written_error() == 20);
  for (const size_t room : {0, 1}) {
    Asked none(room);
    CHECK(JitLogs(none.list()).error.write(text));
    CHECK(none.error[0] == '\0');
    CHECK(none.error[1] == 'x');
    CHECK(none.written_error() == 0);
  }
}

TEST_CASE("a later call without a text keeps the text of an earlier one") {
  Asked asked(64);
  JitLogs logs(asked.list());
  CHECK(logs.error.write("first"));
  CHECK(logs.error.write(""));
  CHECK(std::string(asked.error.c_str()) == "first");
  CHECK(logs.error.write("second"));
  CHECK(std::string(asked.error.c_str()) == "second");
  CHECK(asked.written_error() == 6);
}

TEST_CASE("a log without a buffer is not written and one with a size but no memory is refused") {
  CHECK_FALSE(JitLogs().error.write("text"));
  Asked asked(64, false);
  CHECK_FALSE(JitLogs(asked.list()).error.write("text"));
  CHECK(asked.written_error() == 64);
  CHECK(check(asked.list()) == CUDA_ERROR_INVALID_VALUE);
  CHECK(check(Asked(0, false).list()) == CUDA_SUCCESS);
  CHECK(check(Asked(64).list()) == CUDA_SUCCESS);
}

TEST_CASE("options that NVIDIA's driver refuses are refused") {
  for (const unsigned option : {17u, 18u, 19u, 25u, 27u, unsigned{CU_JIT_NUM_OPTIONS}, 99u, ~0u})
    CHECK(check(option) == CUDA_ERROR_INVALID_VALUE);
  for (const unsigned option : {0u, 2u, 7u, 12u, 26u, 28u, unsigned{CU_JIT_NUM_OPTIONS} - 1})
    CHECK(check(option) == CUDA_SUCCESS);
  for (const unsigned option : {17u, 18u, 19u, 25u, 26u, 27u, 28u})
    CHECK(check(option, 1) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(check({2, nullptr, nullptr}) == CUDA_ERROR_INVALID_VALUE);
  const CUjit_option one = CU_JIT_MAX_REGISTERS;
  void* values[] = {nullptr};
  CHECK(check({~0u, &one, values}) == CUDA_ERROR_INVALID_VALUE);
  CHECK(check({0, nullptr, nullptr}) == CUDA_SUCCESS);
}
