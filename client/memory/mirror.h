// One mirrored allocation, or a part of one (mirrors.h), and the iteration over mirrors. Private to
// mirrors.cc and mirrors_to_host.cc. Guarded by the mutex of Mirrors.
#pragma once
#include <algorithm>

#include "client/memory/mirrors.h"

namespace gpupool::client {

struct Mirrors::Mirror {
  struct ByteRange {
    uint64_t begin, end;
  };
  uint64_t begin = 0, end = 0;  // whole pages
  // Byte ranges that are transferred: everything, except around variables of modules.
  std::vector<ByteRange> ranges;
  uint64_t address = 0;  // of the allocation
  bool managed = true;
  HostPages* pages = nullptr;
  std::unique_ptr<HostPages> own_pages;  // null: the pages of the session's zone
  Session* session = nullptr;
  uint64_t context = 0;
  Attachment attachment = Attachment::global;
  uint64_t stream = 0;
  uint64_t block = 0;  // size of a block in bytes
  std::vector<State> states;
  bool with_host = false;
  // Last work that used it other than as global memory: in the stream that it is attached to, or a copy.
  uint64_t last_use = 0, last_use_context = 0, last_use_stream = 0;
  bool used_by_stream_only = false;  // that stream's work only
  unsigned uses = 0;                 // copies and fills that are being queued
  size_t next = 0;                   // next block in a sequential access, for prefetching
  size_t ahead = 1;                  // number of blocks to fetch at a sequential fault

  size_t index(uint64_t at) const { return (at - begin) / block; }
  uint64_t at(size_t index) const { return std::min(end, begin + index * block); }
};

template <class Visit>
void Mirrors::for_each_part(uint64_t address, uint64_t bytes, Visit&& visit) {
  const uint64_t end = address + bytes;
  auto it = mirrors_.upper_bound(address);
  if (it != mirrors_.begin() && std::prev(it)->second->end > address) --it;
  for (; it != mirrors_.end() && it->first < end; ++it) {
    Mirror& mirror = *it->second;
    visit(mirror, mirror.index(std::max(address, mirror.begin)),
          mirror.index(std::min(end, mirror.end) - 1) + 1);
  }
}

}  // namespace gpupool::client
