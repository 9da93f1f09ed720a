#include "client/kubernetes/host_files.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include "common/token/token.h"

namespace gpupool::kubernetes {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPrograms[] = {"pool-lease", "pool-smi"};
constexpr size_t kHashDigits = 12;

Error failed(const std::string& what, const std::error_code& error) {
  return {ErrorCode::unavailable, "cannot copy " + what + ": " + error.message()};
}

// Copies the files to a new folder.
std::error_code copy_to(const run::Installation& from, const fs::path& to) {
  std::error_code error;
  fs::create_directories(to / "bin", error);
  fs::create_directories(to / "lib", error);
  constexpr auto kAll = fs::copy_options::recursive | fs::copy_options::copy_symlinks;
  if (!error) fs::copy(from.client, to / "lib/client", kAll, error);
  for (const char* const program : kPrograms) {
    std::error_code missing;
    if (!error && fs::exists(from.programs / program, missing))
      fs::copy_file(from.programs / program, to / "bin" / program, error);
  }
  if (error) return error;
  // Shared libraries of the programs, if this is a bundle.
  for (const fs::directory_entry& entry : fs::directory_iterator(from.client.parent_path(), error)) {
    if (entry.is_regular_file() && entry.path().filename().string().find(".so") != std::string::npos)
      fs::copy_file(entry.path(), to / "lib" / entry.path().filename(), error);
    if (error) return error;
  }
  return error;
}

}  // namespace

Result<run::Installation> copy_installation(const run::Installation& from, const std::string& folder) {
  const fs::path library = from.client / "libcuda.so.1";
  std::ifstream file(library, std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  if (!file.is_open() || bytes.empty())
    return Error{ErrorCode::unavailable, "cannot read " + library.string()};
  const std::string hash = hash_text(hash_token(bytes));
  const fs::path to = fs::path(folder) / ("client-" + hash.substr(hash.find(':') + 1, kHashDigits));
  const run::Installation copied{to / "bin", to / "lib/client"};
  std::error_code error;
  if (fs::is_directory(to, error)) return copied;
  const fs::path fresh = to.string() + ".new";
  fs::remove_all(fresh, error);  // left by a process that was killed
  error = copy_to(from, fresh);
  ::chmod(fresh.c_str(), 0755);
  if (!error) fs::rename(fresh, to, error);
  if (error) return failed("the client library to " + to.string(), error);
  return copied;
}

Result<std::string> copy_file(const std::string& from, const std::string& folder, const std::string& name) {
  if (from.empty()) return std::string();
  const fs::path to = fs::path(folder) / name, fresh = to.string() + ".new";
  std::error_code error;
  fs::copy_file(from, fresh, fs::copy_options::overwrite_existing, error);
  ::chmod(fresh.c_str(), 0644);
  if (!error) fs::rename(fresh, to, error);
  if (error) return failed(from + " to " + to.string(), error);
  return to.string();
}

}  // namespace gpupool::kubernetes
