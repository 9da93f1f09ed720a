// Text from kernels: printf output and messages of failed assertions, collected in buffers until the runtime
// takes it.
#include <cstdio>
#include <deque>
#include <mutex>
#include <string>
#include <utility>

#include "server/softgpu/exec/block_run.h"
#include "server/softgpu/exec/checked_read.h"
#include "server/softgpu/exec/printf_format.h"

namespace gpupool::softgpu {
namespace {

// Text in the order of writing. When the limit is exceeded, the oldest text is dropped, as in CUDA's circular
// buffer.
class TextFifo {
 public:
  explicit TextFifo(uint64_t limit) : limit_(limit) {}
  void append(const char* text, uint64_t length) try {
    std::lock_guard lock(mutex_);
    pieces_.emplace_back(text, length);
    bytes_ += length;
    shrink();
  } catch (const std::bad_alloc&) {  // drop the text, as if the buffer were full
  }
  std::string take() {
    std::lock_guard lock(mutex_);
    std::string all;
    all.reserve(bytes_);
    for (const auto& piece : pieces_) all += piece;
    pieces_.clear();
    bytes_ = 0;
    return all;
  }
  uint64_t limit() {
    std::lock_guard lock(mutex_);
    return limit_;
  }
  void set_limit(uint64_t limit) {
    std::lock_guard lock(mutex_);
    limit_ = limit;
    shrink();
  }

 private:
  void shrink() {
    while (bytes_ > limit_) {
      bytes_ -= pieces_.front().size();
      pieces_.pop_front();
    }
  }

  std::mutex mutex_;
  std::deque<std::string> pieces_;
  uint64_t bytes_ = 0;
  uint64_t limit_;
};

TextFifo& printf_fifo() {
  static auto* fifo = new TextFifo(1 << 20);
  return *fifo;
}
TextFifo& assert_fifo() {
  static auto* fifo = new TextFifo(1 << 20);
  return *fifo;
}

constexpr uint64_t kMaxFormat = 8 << 10;  // bytes
constexpr uint64_t kMaxName = 1 << 10;

}  // namespace

std::string take_printf_output() {
  return printf_fifo().take();
}
std::string take_assert_output() {
  return assert_fifo().take();
}
void set_printf_fifo_bytes(uint64_t bytes) {
  printf_fifo().set_limit(bytes);
}
uint64_t printf_fifo_bytes() {
  return printf_fifo().limit();
}

}  // namespace gpupool::softgpu

using namespace gpupool::softgpu;

extern "C" {

int32_t softgpu_vprintf(ThreadContext* thread, uint64_t format, uint64_t arguments) {
  if (format == 0) return -1;
  auto& block = BlockRun::of(thread);
  char* const format_text = block.text_buffer();
  if (read_string_checked(format_text, kMaxFormat, format) < 0) {
    block.end_with_fault(FaultKind::illegal_address, format);
  }
  char* const text = format_text + kMaxFormat;
  const FormattedText result =
      format_device_text(text, BlockRun::kTextBytes - kMaxFormat, format_text, arguments);
  if (!result.readable) block.end_with_fault(FaultKind::illegal_address, result.bad_address);
  printf_fifo().append(text, result.length);
  return result.arguments;
}

void softgpu_assertfail(ThreadContext* thread, uint64_t message, uint64_t file, uint32_t line,
                        uint64_t function, uint64_t) {
  auto& block = BlockRun::of(thread);
  char* const message_text = block.text_buffer();
  char* const file_text = message_text + kMaxName;
  char* const function_text = file_text + kMaxName;
  const auto read = [](char* to, uint64_t from) {
    if (read_string_checked(to, kMaxName, from) < 0) std::snprintf(to, kMaxName, "?");
  };
  read(message_text, message);
  read(file_text, file);
  read(function_text, function);
  const uint32_t* at = thread->block->block_idx;
  char place[160];
  std::snprintf(place, sizeof place, ": block: [%u,%u,%u], thread: [%u,%u,%u] Assertion `", at[0], at[1],
                at[2], thread->tid[0], thread->tid[1], thread->tid[2]);
  {  // scope: the string must be destroyed before fail_assertion() abandons this stack
    std::string text = std::string(file_text) + ":" + std::to_string(line) + ": " + function_text + place +
                       message_text + "` failed.\n";
    assert_fifo().append(text.data(), text.size());
    text.pop_back();
    if (!block.assertion_failed()) block.set_fault_text(std::move(text));
  }
  block.fail_assertion(thread);
}

}  // extern "C"
