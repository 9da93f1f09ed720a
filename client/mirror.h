// One allocation, or a part of one, of those in mirrors.h, and how the two halves of its implementation walk over them.
#pragma once
#include <algorithm>

#include "client/mirrors.h"

namespace gpupool::client {

struct Mirrors::Mirror {
  struct Piece {
    uint64_t begin, end;
  };
  uint64_t begin = 0, end = 0;  // whole pages
  std::vector<Piece> pieces;    // what of them is moved: all, but of modules' variables
  uint64_t address = 0;         // of the allocation
  bool managed = true;
  HostPages* pages = nullptr;
  std::unique_ptr<HostPages> own_pages;  // null: the session's
  Session* session = nullptr;
  uint64_t context = 0;
  Attachment attachment = Attachment::global;
  uint64_t stream = 0;
  uint64_t block = 0;        // bytes
  std::vector<State> states;
  bool with_host = false;
  // Work by which it was last used other than as one of all: a stream's that it is attached to, a copy.
  uint64_t touch = 0, touch_context = 0, touch_stream = 0;
  bool touched_by_stream = false;  // and by nothing else
  unsigned uses = 0;               // copies and fills that are being queued
  size_t next = 0;       // where the program comes next if it goes on as it does
  size_t ahead = 1;      // blocks

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
    visit(mirror, mirror.index(std::max(address, mirror.begin)), mirror.index(std::min(end, mirror.end) - 1) + 1);
  }
}

}  // namespace gpupool::client
