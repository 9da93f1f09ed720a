#include "server/softgpu/runtime/program_cache.h"

#include <cstring>

namespace gpupool::softgpu {
namespace {

// 128 bits in two lanes of multiply and fold. It need not resist forgery, since a process can only deceive
// itself.
struct Hash {
  uint64_t low = 0x9e3779b97f4a7c15ull, high = 0xc2b2ae3d27d4eb4full;

  void add_word(uint64_t word) {
    const auto mix = [](uint64_t a, uint64_t b) {
      const auto product = static_cast<unsigned __int128>(a) * b;
      return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
    };
    low = mix(low ^ word, 0xa0761d6478bd642full) + high;
    high = mix(high + word, 0xe7037ed1a0b428dbull) ^ low;
  }
  void add(std::string_view text) {
    while (text.size() >= 8) {
      uint64_t word;
      std::memcpy(&word, text.data(), 8);
      add_word(word);
      text.remove_prefix(8);
    }
    uint64_t rest = 0;
    std::memcpy(&rest, text.data(), text.size());
    add_word(rest);
    add_word(text.size());
  }
};

}  // namespace

ProgramCache::Key ProgramCache::key_of(std::span<const std::string_view> texts,
                                       const CompileOptions& options) {
  Hash hash;
  uint64_t bytes = 0;
  for (const std::string_view text : texts) {
    hash.add(text);
    hash.add_word(text.size());
    bytes += text.size();
  }
  return {hash.low, hash.high, bytes,
          options.compute_capability * 8ull + static_cast<uint64_t>(options.converge_warps) * 2 +
              (options.optimise ? 1 : 0)};
}

void ProgramCache::keep(std::shared_ptr<const Program> program) {
  kept_.remove(program);
  kept_.push_front(std::move(program));
  if (kept_.size() > kKeptPrograms) {
    kept_.pop_back();
    std::erase_if(entries_, [](const auto& entry) {
      return !entry.second.compiling && entry.second.program.expired();
    });
  }
}

ProgramCache::Outcome ProgramCache::get(std::span<const std::string_view> texts,
                                        const CompileOptions& options) {
  const Key key = key_of(texts, options);
  std::unique_lock guard(mutex_);
  for (;;) {
    Entry& entry = entries_[key];
    if (auto program = entry.program.lock()) {
      keep(program);
      return program;
    }
    if (!entry.compiling) {
      entry.compiling = true;
      break;
    }
    compiled_.wait(guard);
  }
  guard.unlock();
  Outcome outcome = CompileError{CompileErrorCode::internal, "out of memory"};
  try {
    outcome = compile(texts, options);
  } catch (...) {  // waiting threads must be woken in any case
  }
  guard.lock();
  entries_[key].compiling = false;
  if (const auto* program = std::get_if<std::shared_ptr<const Program>>(&outcome)) {
    entries_[key].program = *program;
    keep(*program);
  } else {
    entries_.erase(key);
  }
  compiled_.notify_all();
  return outcome;
}

}  // namespace gpupool::softgpu
