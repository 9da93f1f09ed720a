#include "client/kubernetes/host_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <system_error>
#include <vector>

#include "common/descriptor.h"
#include "common/token/token.h"

namespace gpupool::kubernetes {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPrograms[] = {"pool-lease", "pool-smi"};
constexpr size_t kHashDigits = 12;

Error failed(const std::string& what, const std::error_code& error) {
  return {ErrorCode::unavailable, "cannot copy " + what + ": " + error.message()};
}

// A file of the installation, and its place in the copy.
struct Part {
  fs::path from, to;
};

// Adds the files of a folder, and of those in it.
void add_folder(const fs::path& from, const fs::path& to, std::vector<Part>& parts, std::error_code& error) {
  for (const fs::directory_entry& entry : fs::directory_iterator(from, error)) {
    const fs::path its = to / entry.path().filename();
    if (entry.is_directory() && !entry.is_symlink())
      add_folder(entry.path(), its, parts, error);
    else
      parts.push_back({entry.path(), its});
    if (error) return;
  }
}

// Returns the files that containers get, ordered by their places.
Result<std::vector<Part>> parts_of(const run::Installation& from) {
  std::vector<Part> parts;
  std::error_code error;
  add_folder(from.client, "lib/client", parts, error);
  if (error) return failed(from.client.string(), error);
  for (const char* const program : kPrograms) {
    if (fs::exists(from.programs / program, error))
      parts.push_back({from.programs / program, fs::path("bin") / program});
  }
  // Shared libraries of the programs, if this is a bundle.
  const fs::path libraries = from.client.parent_path();
  for (const fs::directory_entry& entry : fs::directory_iterator(libraries, error)) {
    if (entry.is_regular_file() && entry.path().filename().string().find(".so") != std::string::npos)
      parts.push_back({entry.path(), fs::path("lib") / entry.path().filename()});
  }
  if (error) return failed(libraries.string(), error);
  std::sort(parts.begin(), parts.end(), [](const Part& one, const Part& other) { return one.to < other.to; });
  return parts;
}

// Returns a text that differs for files with other contents, places or modes.
Result<std::string> hash_of(const std::vector<Part>& parts) {
  std::string all;
  for (const Part& part : parts) {
    std::error_code error;
    if (fs::is_symlink(part.from, error)) {
      all += part.to.string() + " -> " + fs::read_symlink(part.from, error).string() + "\n";
      continue;
    }
    std::ifstream file(part.from, std::ios::binary);
    const std::string bytes(std::istreambuf_iterator<char>(file), {});
    const auto mode = fs::status(part.from, error).permissions();
    if (!file.is_open() || file.bad() || error)
      return Error{ErrorCode::unavailable, "cannot read " + part.from.string()};
    all += part.to.string() + " " + std::to_string(static_cast<unsigned>(mode)) + " " +
           hash_text(hash_token(bytes)) + "\n";
  }
  const std::string hash = hash_text(hash_token(all));
  return hash.substr(hash.find(':') + 1, kHashDigits);
}

// Writes a file's or folder's data to the disk: after a power failure a name must not stand for a part.
std::error_code flush(const fs::path& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.number() >= 0 && ::fsync(file.number()) == 0) return {};
  return {errno, std::generic_category()};
}

// Makes a folder below `top` that all users can read, whatever the umask is.
std::error_code make_folder(const fs::path& top, const fs::path& folder, std::set<fs::path>& made) {
  std::error_code error;
  for (fs::path at = top; const fs::path& name : folder) {
    at /= name;
    if (!made.insert(at).second) continue;
    fs::create_directory(at, error);
    if (!error && ::chmod(at.c_str(), 0755) != 0) error = {errno, std::generic_category()};
    if (error) return error;
  }
  return error;
}

// Copies the files to a new folder, and flushes them.
std::error_code copy_to(const std::vector<Part>& parts, const fs::path& top) {
  std::set<fs::path> folders;
  std::error_code error = make_folder(top.parent_path(), top.filename(), folders);
  for (const Part& part : parts) {
    const fs::path to = top / part.to;
    if (!error) error = make_folder(top, part.to.parent_path(), folders);
    if (error) return error;
    if (fs::is_symlink(part.from, error)) {
      fs::copy_symlink(part.from, to, error);
      continue;
    }
    fs::copy_file(part.from, to, error);
    if (!error) error = flush(to);
  }
  for (const fs::path& folder : folders) {
    if (!error) error = flush(folder);
  }
  return error;
}

// Renames a flushed file or folder, and flushes its new name.
std::error_code move_to(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  return error ? error : flush(to.parent_path());
}

}  // namespace

Result<run::Installation> copy_installation(const run::Installation& from, const std::string& folder) {
  if (std::error_code error; !fs::exists(from.client / "libcuda.so.1", error))
    return Error{ErrorCode::unavailable, "there is no " + (from.client / "libcuda.so.1").string()};
  const auto parts = parts_of(from);
  if (!parts) return parts.error();
  const auto hash = hash_of(*parts);
  if (!hash) return hash.error();
  const fs::path to = fs::path(folder) / ("client-" + *hash);
  const run::Installation copied{to / "bin", to / "lib/client"};
  std::error_code error;
  if (fs::is_directory(to, error)) return copied;
  const fs::path fresh = to.string() + ".new";
  fs::create_directories(folder, error);
  fs::remove_all(fresh, error);  // left by a process that was killed
  error = copy_to(*parts, fresh);
  if (!error) error = move_to(fresh, to);
  if (error) return failed("the client library to " + to.string(), error);
  return copied;
}

Result<std::string> copy_file(const std::string& from, const std::string& folder, const std::string& name) {
  if (from.empty()) return std::string();
  const fs::path to = fs::path(folder) / name, fresh = to.string() + ".new";
  std::error_code error;
  fs::copy_file(from, fresh, fs::copy_options::overwrite_existing, error);
  if (!error && ::chmod(fresh.c_str(), 0644) != 0) error = {errno, std::generic_category()};
  if (!error) error = flush(fresh);
  if (!error) error = move_to(fresh, to);
  if (error) return failed(from + " to " + to.string(), error);
  return to.string();
}

}  // namespace gpupool::kubernetes
