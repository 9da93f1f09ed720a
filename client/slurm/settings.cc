#include "client/slurm/settings.h"

#include <filesystem>
#include <system_error>

namespace gpupool::slurm {
namespace {

namespace fs = std::filesystem;

Error wrong(const std::string& word, const std::string& why) {
  return {ErrorCode::invalid, "plugstack.conf: argument '" + word + "' of the gpupool plugin: " + why};
}

Result<void> read_word(const std::string& word, Settings& out, std::string& prefix) {
  const size_t equals = word.find('=');
  const std::string name = word.substr(0, equals);
  const std::string value = equals == std::string::npos ? "" : word.substr(equals + 1);
  if (name == "server") {
    if (!value.starts_with("pool://")) return wrong(word, "must be server=pool://HOST:PORT");
    out.server = value;
  } else if (name == "token-file") {
    if (!value.starts_with("/") && !value.starts_with("~/"))
      return wrong(word, "must be an absolute path, or begin with ~/ for the user's home");
    out.token_file = value;
  } else if (name == "folder" || name == "gpupool") {
    if (!value.starts_with("/")) return wrong(word, "must be an absolute path");
    (name == "folder" ? out.folder : prefix) = value;
  } else if (name == "check") {
    if (value != "yes" && value != "no") return wrong(word, "must be check=yes or check=no");
    out.check = value == "yes";
  } else {
    return wrong(word, "unknown; valid are server, token-file, folder, gpupool and check");
  }
  return {};
}

}  // namespace

Result<Settings> parse_settings(int count, char* const* words, const std::string& plugin) {
  Settings out;
  std::string prefix;
  for (int i = 0; i < count; ++i) {
    if (const auto read = read_word(words[i], out, prefix); !read) return read.error();
  }
  if (prefix.empty()) {
    // PREFIX/lib/slurm/spank_gpupool.so; Slurm's folder of plugins may have a symbolic link to it.
    std::error_code status;
    const fs::path resolved = fs::canonical(plugin, status);
    prefix = (status ? fs::path(plugin) : resolved).parent_path().parent_path().parent_path();
  }
  out.programs = fs::path(prefix) / "bin";
  return out;
}

}  // namespace gpupool::slurm
