// Opens the file that keeps compiled code from one process to the next (jit/code_file.h), for
// Runtime::code_file().
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "server/softgpu/jit/code_file.h"

namespace gpupool::softgpu {

struct OpenedCodeFile {
  std::shared_ptr<CodeFile> file;  // null: code is not kept
  std::string problem;             // what failed; empty if nothing did
};

// `where` is Config::cache; `limit` bounds the size of a file in a folder, in bytes. Makes the folder if
// there is none. Folder and file must belong to this user and be inaccessible to others, because their
// content is executed.
OpenedCodeFile open_code_file(const std::string& where, uint64_t limit);

}  // namespace gpupool::softgpu
