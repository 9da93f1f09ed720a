#include "client/cdi/shared_libraries.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <sstream>
#include <string_view>
#include <system_error>

#include "common/spawn.h"

namespace gpupool::cdi {
namespace {

namespace fs = std::filesystem;

// Beginnings of the names of libraries of the C and C++ run time, as in scripts/packages/libraries.sh.
constexpr std::string_view kRunTime[] = {"linux-vdso.so", "ld-linux",    "libc.so",       "libm.so",
                                         "libdl.so",      "librt.so",    "libpthread.so", "libresolv.so",
                                         "libgcc_s.so",   "libstdc++.so"};

// Returns the dynamic linker of this program; empty if the program is linked statically.
std::string dynamic_linker() {
  std::string path;
  ::dl_iterate_phdr(
      [](dl_phdr_info* object, size_t, void* out) {
        for (int i = 0; i < object->dlpi_phnum; ++i) {
          const ElfW(Phdr)& part = object->dlpi_phdr[i];
          if (part.p_type == PT_INTERP)
            *static_cast<std::string*>(out) = reinterpret_cast<const char*>(object->dlpi_addr + part.p_vaddr);
        }
        return 1;  // the first object is the program
      },
      &path);
  return path;
}

std::string read_to_end(int file) {
  std::string text;
  char part[4096];
  for (;;) {
    const ssize_t length = ::read(file, part, sizeof part);
    if (length < 0 && errno == EINTR) continue;
    if (length <= 0) return text;
    text.append(part, static_cast<size_t>(length));
  }
}

// Returns the output of `ld.so --list PROGRAM`, which does not start the program. The environment is empty:
// LD_LIBRARY_PATH and LD_PRELOAD of this process do not apply in containers.
Result<std::string> list_libraries(const fs::path& program) {
  const auto failed = [&](const std::string& why) {
    return Error{ErrorCode::unavailable, "cannot list the libraries of " + program.string() + ": " + why};
  };
  const std::string linker = dynamic_linker();
  if (linker.empty()) return failed("pool-cdi has no dynamic linker");
  int output[2];
  if (::pipe2(output, O_CLOEXEC) != 0) return failed(std::generic_category().message(errno));
  Spawn child;
  child.give_no_input();
  child.give(output[1], STDOUT_FILENO);
  child.give(output[1], STDERR_FILENO);
  const char* const words[] = {linker.c_str(), "--list", program.c_str(), nullptr};
  char* const no_variables[] = {nullptr};
  pid_t pid = -1;
  const int error = child.start(linker.c_str(), words, pid, no_variables);
  ::close(output[1]);
  std::string text = error == 0 ? read_to_end(output[0]) : "";
  ::close(output[0]);
  if (error != 0) return failed(linker + ": " + std::generic_category().message(error));
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  // With a missing library, the list names it and the status is not 0.
  if (status != 0 && text.find(" => not found") == std::string::npos)
    return failed(text.empty() ? "the dynamic linker cannot load it" : text.substr(0, text.find('\n')));
  return text;
}

bool belongs_to_run_time(const std::string& name) {
  const std::string file = fs::path(name).filename();
  return std::any_of(std::begin(kRunTime), std::end(kRunTime),
                     [&](std::string_view start) { return file.starts_with(start); });
}

bool is_below(const fs::path& path, const fs::path& folder) {
  const fs::path inside = path.lexically_normal().lexically_relative(folder.lexically_normal());
  return !inside.empty() && *inside.begin() != "..";
}

}  // namespace

Result<std::vector<fs::path>> bundled_libraries(const fs::path& program, const fs::path& folder) {
  const auto listed = list_libraries(program);
  if (!listed) return listed.error();
  std::vector<fs::path> found;
  std::string foreign;
  std::istringstream lines(*listed);
  // "	NAME => PATH (ADDRESS)", or without "=> PATH" for the dynamic linker and the kernel's vdso.
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name, arrow, path;
    words >> name >> arrow >> path;
    if (name.empty() || belongs_to_run_time(name)) continue;
    if (arrow == "=>" && is_below(path, folder))
      found.push_back(fs::path(path).lexically_normal());
    else
      foreign += (foreign.empty() ? "" : ", ") + name;
  }
  if (foreign.empty()) return found;
  return Error{ErrorCode::unavailable,
               program.string() + " needs libraries that are not below " + folder.string() + ": " + foreign};
}

}  // namespace gpupool::cdi
