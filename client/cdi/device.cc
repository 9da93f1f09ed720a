#include "client/cdi/device.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "client/cdi/shared_libraries.h"
#include "client/lease/file.h"
#include "common/files/exposure.h"
#include "protocol/scheduler/address.h"
#include "protocol/transport/loopback.h"
#include "protocol/transport/transport.h"

namespace gpupool::cdi {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPoolScheme = "pool://";

// Places in a container.
constexpr const char* kPrograms = "/usr/lib/gpupool/bin";
constexpr const char* kLibraries = "/usr/lib/gpupool/lib";
constexpr const char* kClient = "/usr/lib/gpupool/lib/client";
constexpr const char* kCredentials = "/etc/gpupool";
constexpr const char* kLease = "/run/gpupool/lease";

// Folders that the dynamic linker searches without being told: those of Debian and of others.
#if defined(__x86_64__)
constexpr const char* kSystemFolders[] = {"/usr/lib/x86_64-linux-gnu", "/usr/lib64"};
#elif defined(__aarch64__)
constexpr const char* kSystemFolders[] = {"/usr/lib/aarch64-linux-gnu", "/usr/lib64"};
#endif

Error invalid(const std::string& message) {
  return {ErrorCode::invalid, message};
}

std::string inside(const char* folder, const fs::path& path) {
  return fs::path(folder) / path;
}

// Adds a variable, or replaces its value.
void set(Edits& edits, const std::string& name, const std::string& value) {
  for (auto& [known, present] : edits.variables) {
    if (known == name) return void(present = value);
  }
  edits.variables.emplace_back(name, value);
}

// Mounts a file with a credential and names it in a variable.
Result<void> add_file(Edits& edits, const char* option, const std::string& path, bool secret,
                      const char* variable, const char* place) {
  if (path.empty()) return {};
  std::error_code error;
  const fs::path real = fs::canonical(path, error);
  if (!error && !fs::is_regular_file(real, error) && !error)
    return invalid(std::string(option) + ": '" + path + "' is not a regular file");
  if (error || ::access(real.c_str(), R_OK) != 0) {
    const std::string why = error ? error.message() : std::generic_category().message(errno);
    return Error{ErrorCode::unavailable, std::string(option) + ": '" + path + "' cannot be read: " + why};
  }
  if (secret) {
    if (const auto checked = files::check_secret(real); !checked) return checked.error();
  }
  edits.mounts.push_back({real, inside(kCredentials, place)});
  set(edits, variable, inside(kCredentials, place));
  return {};
}

// Mounts the libraries and pool-lease with which a program acquires a lease.
Result<void> add_pool_lease(const run::Installation& installation, Edits& edits) {
  const fs::path libraries = installation.client.parent_path();
  const auto needed = bundled_libraries(installation.programs / "pool-lease", libraries);
  if (!needed) {
    return Error{ErrorCode::unavailable,
                 "a container cannot acquire a lease with this installation: " + needed.error().message +
                     "; use one that brings its libraries (a bundle of scripts/make-bundle.sh), or the "
                     "address of a poold"};
  }
  edits.mounts.push_back({installation.programs / "pool-lease", inside(kPrograms, "pool-lease")});
  for (const fs::path& library : *needed)
    edits.mounts.push_back({library, inside(kLibraries, library.lexically_relative(libraries))});
  return {};
}

// Explains an address that is not the host's in a container.
std::string note_on_address(const std::string& address) {
  return address +
         " is this host only for containers with the host's network (--network=host); for others use "
         "shm:///PATH "
         "or an address that they can reach";
}

Result<void> add_pool(const run::Installation& installation, const DeviceOptions& options, Edits& edits,
                      std::vector<std::string>& notes) {
  const auto address = pool::parse_pool_address(options.server);
  if (!address) return invalid("--server: " + address.error().message);
  for (const pool::Scheduler& scheduler : address->schedulers) {
    if (transport::connects_to_loopback(scheduler.text())) notes.push_back(note_on_address(scheduler.text()));
  }
  if (options.system_folders) {
    return invalid(
        "--system-folders: pool:// addresses need LD_LIBRARY_PATH, because the client library finds "
        "pool-lease by its own path; use --library-path instead");
  }
  return add_pool_lease(installation, edits);
}

// Returns why containers must not see the files of a folder; empty: they may, or `error` is set.
std::string describe_exposure(const fs::path& folder, std::error_code& error) {
  const auto allows = [](const fs::file_status& about, fs::perms others) {
    return (about.permissions() & others) != fs::perms::none;
  };
  const fs::file_status whole = fs::status(folder, error);
  if (error) return "";
  if (allows(whole, fs::perms::others_write)) return "every user can write to it";
  fs::directory_iterator entry(folder, error);
  for (const fs::directory_iterator end; !error && entry != end; entry.increment(error)) {
    std::error_code vanished;
    const fs::file_status about = entry->symlink_status(vanished);
    if (vanished || fs::is_symlink(about)) continue;  // a container follows links in its own files
    const std::string name = entry->path().filename();
    if (fs::is_directory(about)) return "it contains the folder " + name;
    // Root in a container could use private keys and admin sockets.
    if (!allows(about, fs::perms::others_read))
      return "it contains " + name + ", which not every user can read";
  }
  return "";
}

// Returns the folder of a socket with symbolic links resolved. Refuses a folder whose mount would show
// containers more of the host than sockets for all users.
Result<fs::path> resolve_socket_folder(const fs::path& folder, const std::string& server) {
  const auto refused = [&](const std::string& why) {
    return invalid(server + ": cannot mount " + folder.string() + " in containers: " + why +
                   "; let poold listen in a folder of its own, such as /run/gpupool");
  };
  if (std::find(folder.begin(), folder.end(), "..") != folder.end()) return refused("its path contains '..'");
  std::error_code error;
  const fs::path real = fs::weakly_canonical(folder, error);
  if (error) return refused(error.message());
  if (std::distance(real.begin(), real.end()) < 3)  // "/", "run", and one more
    return refused("it is a folder of the system");
  const std::string exposure = describe_exposure(real, error);
  if (!exposure.empty()) return refused(exposure);
  if (error && error != std::errc::no_such_file_or_directory) return refused(error.message());
  return real;
}

Result<void> add_servers(const DeviceOptions& options, Edits& edits, std::vector<std::string>& notes) {
  if (options.server.starts_with(client::kLeaseScheme)) {
    return invalid(
        "--server: '" + options.server +
        "' is the lease of one program; use pool://SCHEDULER:PORT, so that each container acquires "
        "a lease of its own");
  }
  const auto servers = client::named_servers(options.server);
  if (!servers) return invalid("--server: " + servers.error().message);
  for (const client::LeasedServer& server : *servers) {
    const transport::Endpoint& endpoint = server.endpoint;
    if (endpoint.scheme == "shm" && endpoint.host.front() == '/') {
      const fs::path folder = fs::path(endpoint.host).parent_path().lexically_normal();
      const auto real = resolve_socket_folder(fs::path(endpoint.host).parent_path(), endpoint.text());
      if (!real) return real.error();
      const bool mounted = std::any_of(edits.mounts.begin(), edits.mounts.end(),
                                       [&](const Mount& mount) { return mount.container_path == folder; });
      if (!mounted) edits.mounts.push_back({*real, folder});
      std::error_code error;
      if (!fs::is_directory(folder, error))
        notes.push_back(folder.string() + " does not exist: create it before containers are started");
    } else if (endpoint.scheme == "shm" || transport::connects_to_loopback(endpoint.host)) {
      notes.push_back(note_on_address(endpoint.text()));
    }
  }
  return {};
}

Result<void> add_variables(const DeviceOptions& options, Edits& edits) {
  constexpr std::string_view kOwn[] = {"GPUPOOL",        "GPUPOOL_TOKEN",    "GPUPOOL_TOKEN_FILE",
                                       "GPUPOOL_TLS_CA", "GPUPOOL_TLS_CERT", "GPUPOOL_TLS_KEY",
                                       "LD_LIBRARY_PATH"};
  for (const std::string& pair : options.variables) {
    const std::string name = pair.substr(0, pair.find('='));
    const bool plain = !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) {
      return std::isalnum(c) != 0 || c == '_';
    });
    if (!plain || name.size() == pair.size()) return invalid("--env: '" + pair + "' must be NAME=VALUE");
    if (name == "GPUPOOL_TOKEN") {
      return invalid(
          "--env: GPUPOOL_TOKEN would show the token to everyone who can read the specification; use "
          "--token-file");
    }
    if (std::find(std::begin(kOwn), std::end(kOwn), name) != std::end(kOwn))
      return invalid("--env: " + name + " is set by another option; see pool-cdi --help");
    set(edits, name, pair.substr(name.size() + 1));
  }
  return {};
}

// Checks folders for LD_LIBRARY_PATH. The dynamic linker would search empty and relative ones in the
// program's current directory.
Result<void> check_library_path(const std::string& folders) {
  for (size_t at = 0; at <= folders.size();) {
    const size_t end = std::min(folders.find_first_of(":;", at), folders.size());
    if (at == end || folders[at] != '/') {
      return invalid("--library-path: '" + folders +
                     "' must be absolute paths of folders, separated by colons");
    }
    at = end + 1;
  }
  return {};
}

// Makes the dynamic linker of the container find the libraries.
void add_library_path(const run::Installation& installation, const DeviceOptions& options, Edits& edits) {
  if (!options.system_folders) {
    const std::string& more = options.library_path;
    set(edits, "LD_LIBRARY_PATH", more.empty() ? kClient : kClient + (":" + more));
    return;
  }
  std::error_code error;
  for (const char* const folder : kSystemFolders) {
    for (const char* const name : {"libcuda.so.1", "libnvidia-ml.so.1"}) {
      if (fs::exists(installation.client / name, error))
        edits.mounts.push_back({installation.client / name, inside(folder, name)});
    }
  }
}

Result<void> add_jax(const run::Installation& installation, Edits& edits) {
  std::error_code error;
  if (!fs::is_directory(installation.client / "python", error)) {
    return Error{ErrorCode::unavailable, "--jax: there is no plugin in " +
                                             (installation.client / "python").string() +
                                             "; install or build gpupool again"};
  }
  set(edits, "PYTHONPATH", inside(kClient, "python"));
  return {};
}

}  // namespace

Result<Description> describe_device(const run::Installation& installation, const DeviceOptions& options) {
  if (const auto named = check_name(options.name); !named) return invalid("--name: " + named.error().message);
  if (!options.library_path.empty() && options.system_folders)
    return invalid("--library-path and --system-folders exclude each other");
  if (!options.library_path.empty()) {
    if (const auto checked = check_library_path(options.library_path); !checked) return checked.error();
  }
  Description out;
  out.device.name = options.name;
  Edits& edits = out.device.edits;
  // The container's folders, so that the variables are those of a program in the container.
  const bool leased = !options.lease_folder.empty();
  const std::string server =
      leased ? std::string(client::kLeaseScheme) + kLease + "/servers" : options.server;
  const auto variables = run::program_environment({kPrograms, kClient}, {server, "", false, false});
  if (!variables) return variables.error();
  for (const run::Variable& variable : *variables) {
    if (variable.mode != run::Variable::Mode::prepend) set(edits, variable.name, variable.value);
  }
  if (leased) {
    edits.mounts.push_back({options.lease_folder, kLease});
  } else {
    const bool pool = options.server.starts_with(kPoolScheme);
    const auto served =
        pool ? add_pool(installation, options, edits, out.notes) : add_servers(options, edits, out.notes);
    if (!served) return served.error();
  }
  struct File {
    const char* option;
    const std::string& path;
    bool secret;
    const char* variable;
    const char* place;
  };
  for (const File& file : {File{"--token-file", options.token_file, true, "GPUPOOL_TOKEN_FILE", "token"},
                           File{"--tls-ca", options.tls_ca, false, "GPUPOOL_TLS_CA", "ca.pem"},
                           File{"--tls-cert", options.tls_certificate, false, "GPUPOOL_TLS_CERT", "cert.pem"},
                           File{"--tls-key", options.tls_key, true, "GPUPOOL_TLS_KEY", "key.pem"}}) {
    const auto added = add_file(edits, file.option, file.path, file.secret, file.variable, file.place);
    if (!added) return added.error();
  }
  add_library_path(installation, options, edits);
  if (options.jax) {
    if (const auto added = add_jax(installation, edits); !added) return added.error();
  }
  if (const auto added = add_variables(options, edits); !added) return added.error();
  return out;
}

Edits common_edits(const run::Installation& installation) {
  Edits edits;
  edits.mounts.push_back({installation.client, kClient});
  const fs::path tool = installation.programs / "pool-smi";
  if (const auto libraries = bundled_libraries(tool, installation.client.parent_path());
      libraries && libraries->empty())
    edits.mounts.push_back({tool, inside(kPrograms, "pool-smi")});
  return edits;
}

}  // namespace gpupool::cdi
