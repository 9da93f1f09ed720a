// Runs the program's copies: gathers the facts about a copy, chooses its route (client/copies/copy_route.h)
// and follows it. Used by the copy functions of the driver API. Any thread.
#pragma once
#include <optional>

#include "client/api/copy_box.h"
#include "client/copies/copy_route.h"
#include "client/memory/mirrors.h"

namespace gpupool::client {

struct CopyCaller {
  Session* session = nullptr;
  Context* context = nullptr;
  CUstream stream = nullptr;
  bool wait = false;  // a synchronous call
};

// Fills in session and context, and resolves the stream.
CUresult enter(CopyCaller& caller);
CUresult run_copy(CopyCaller caller, CopyBox box);

// The steps that all copies share. While any stream is being captured: makes the copy a node of the graph, or
// refuses it; nullopt: the stream is not being captured, and `facts` says so.
std::optional<CUresult> capture_copy(const CopyCaller& caller, const CopyBox& box, CopyFacts& facts);
// Synchronises mirrored memory and registered memory before a copy. `use`: kept until the copy is queued.
CUresult before_copy(const CopyCaller& caller, const CopyBox& box, Mirrors::PendingWrite& use);

}  // namespace gpupool::client
