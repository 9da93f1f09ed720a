// Reads and replaces a file that several processes may update at the same time. Used by pool-cdi and
// client/kubernetes/ for their specifications; one thread.
//
// A lock on the folder makes updates take turns, and rename() replaces the file, so that readers never see a
// part of it. Errors name the path, the reason, and what to do.
#pragma once
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "common/result.h"

namespace gpupool::cdi {

// Returns the file's contents; nullopt: it does not exist.
Result<std::optional<std::string>> read_file(const std::filesystem::path& path);

// Returns the new contents of a file from its present ones; nullopt: the file does not exist, or is to be
// removed.
using Update = std::function<Result<std::optional<std::string>>(const std::optional<std::string>& present)>;

// Updates the file, whose mode becomes 0644. With `make_folder` a missing folder is created.
Result<void> update_file(const std::filesystem::path& path, bool make_folder, const Update& update);

}  // namespace gpupool::cdi
