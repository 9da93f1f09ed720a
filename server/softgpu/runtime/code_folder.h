// Where compiled code is kept from one process to the next.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "server/softgpu/jit/code_file.h"

namespace gpupool::softgpu {

struct CodeFolder {
  std::shared_ptr<CodeFile> file;  // null: nothing is kept
  std::string problem;             // why, where something was wrong
};

// `where` as in Config::cache. The folder is made where there is none; it and the file must belong to this user and be closed
// to all others, since who can write there decides what this process executes.
CodeFolder open_code_folder(const std::string& where, uint64_t limit);

}  // namespace gpupool::softgpu
