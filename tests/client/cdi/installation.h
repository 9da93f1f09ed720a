// An installation with pool-cdi, PREFIX/bin and PREFIX/lib/client, and checks of what it writes. One thread.
#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/poold_process.h"
#include "tests/support/processes.h"

namespace gpupool::testing {

class CdiInstallation {
 public:
  // pool-lease and pool-smi are any programs that need only libc.
  CdiInstallation() {
    namespace fs = std::filesystem;
    fs::create_directories(prefix() / "bin");
    fs::create_directories(client());
    fs::create_directories(folder_.path() / "cdi");
    fs::copy_file(program_path("pool-cdi"), prefix() / "bin" / "pool-cdi");
    for (const char* name : {"pool-lease", "pool-smi"}) set_program(name, "/bin/true");
    for (const char* name : {"libcuda.so.1", "libnvidia-ml.so.1"})
      folder_.write(std::string("pool/lib/client/") + name, "a library");
  }
  std::filesystem::path prefix() const { return folder_.path() / "pool"; }
  std::filesystem::path client() const { return prefix() / "lib" / "client"; }
  const TemporaryFolder& folder() const { return folder_; }
  std::string file() const { return folder_.path() / "cdi" / "gpupool.json"; }

  void set_program(const std::string& name, const std::filesystem::path& program) const {
    std::filesystem::copy_file(program, prefix() / "bin" / name,
                               std::filesystem::copy_options::overwrite_existing);
  }
  std::vector<std::string> command(const std::vector<std::string>& words) const {
    std::vector<std::string> out{prefix() / "bin" / "pool-cdi"};
    out.insert(out.end(), words.begin(), words.end());
    return out;
  }
  Finished run(const std::vector<std::string>& words) const {
    return run_to_end(command(words), {{"GPUPOOL", ""}});
  }
  // Adds --output FILE.
  Finished update(std::vector<std::string> words) const {
    words.insert(words.end(), {"--output", file()});
    return run(words);
  }
  // Throws if the file is no JSON.
  nlohmann::json specification() const { return nlohmann::json::parse(content_of(file())); }

 private:
  TemporaryFolder folder_;
};

}  // namespace gpupool::testing
