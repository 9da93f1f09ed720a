// A folder with a poold of its own, whose file can be replaced while it runs, as a package manager does it.
// Throws std::runtime_error if a file cannot be written.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/processes.h"

namespace gpupool::testing {

class InstalledPoold {
 public:
  InstalledPoold();
  std::filesystem::path path() const { return folder_.path() / "bin" / "poold"; }
  // Replaces the file by a copy of the built poold.
  void install();
  // Replaces the file by an executable script.
  void install_script(const std::string& text);
  // For PooldProcess: executes this poold in place of the built one.
  std::vector<std::string> launcher() const {
    return {"/bin/sh", "-c", "shift; exec " + path().string() + R"( "$@")", "sh"};
  }
  const TemporaryFolder& folder() const { return folder_; }

 private:
  void install(const std::string& program);

  TemporaryFolder folder_;
};

}  // namespace gpupool::testing
