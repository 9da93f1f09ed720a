#include "tests/support/installed_poold.h"

#include <fstream>
#include <stdexcept>

#include "tests/support/poold_process.h"

namespace gpupool::testing {

namespace fs = std::filesystem;

InstalledPoold::InstalledPoold() {
  fs::create_directories(folder_.path() / "bin");
  fs::permissions(folder_.path() / "bin", fs::perms(0755));
  const fs::path built = fs::path(program_path("poold")).parent_path();
  fs::create_symlink(built / "poold-worker", folder_.path() / "bin" / "poold-worker");
  fs::create_symlink(built.parent_path() / "lib", folder_.path() / "lib");
  install();
}

void InstalledPoold::install() {
  install(program_path("poold"));
}

void InstalledPoold::install(const std::string& program) {
  const fs::path fresh = folder_.path() / "bin" / "poold.new";
  // By another process: one that another thread forks here would have the file open for writing for a moment,
  // and a program that somebody writes cannot start.
  const Finished copied = run_to_end({"cp", program, fresh});
  if (copied.status != 0) throw std::runtime_error(copied.output);
  fs::permissions(fresh, fs::perms(0755));  // whatever the umask is
  fs::rename(fresh, path());
}

void InstalledPoold::install_script(const std::string& text) {
  const fs::path fresh = folder_.path() / "script";
  std::ofstream(fresh) << text;
  fs::permissions(fresh, fs::perms::owner_all);
  install(fresh);
}

}  // namespace gpupool::testing
