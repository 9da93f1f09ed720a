#include "server/confinement/secrets.h"

#include <grp.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/confinement/landlock.h"
#include "server/confinement/worker_users.h"

namespace gpupool::server {
namespace {

bool is_group(gid_t group, const char* name) {
  const struct group* const found = ::getgrnam(name);
  return found && found->gr_gid == group;
}

// True if the file's mode lets the workers' user, or one of their range, read it. Workers have the groups
// video and render, too (worker/sandbox.cc).
bool mode_admits_workers(const struct stat& file, const std::string& users) {
  bool owner = false, group = is_group(file.st_gid, "video") || is_group(file.st_gid, "render");
  if (const auto range = WorkerUsers::parse(users); range && range->is_number()) {
    const auto contains = [&](uid_t one) { return range->first() <= one && one <= range->last(); };
    owner = contains(file.st_uid);
    group = group || contains(file.st_gid);
  } else if (const passwd* const user = ::getpwnam(users.c_str())) {
    owner = file.st_uid == user->pw_uid;
    group = group || file.st_gid == user->pw_gid;
  }
  // A file's owner can change its mode.
  return owner || (group && (file.st_mode & S_IRGRP) != 0) || (file.st_mode & S_IROTH) != 0;
}

}  // namespace

std::vector<std::string> readable_secrets(const std::vector<Secret>& secrets,
                                          const ConfinementSettings& settings,
                                          const std::vector<std::string>& readable) {
  const bool other_user = ::geteuid() == 0 && !settings.users.empty() && settings.sandbox != Sandbox::off;
  std::vector<std::string> found;
  for (const Secret& secret : secrets) {
    struct stat status {};
    if (secret.file.empty() || ::stat(secret.file.c_str(), &status) != 0) continue;
    if (other_user && !mode_admits_workers(status, settings.users)) continue;
    if (settings.sandbox != Sandbox::off && !worker::sandbox::is_readable(secret.file, readable)) continue;
    const std::string what = secret.name + ": workers could read '" + secret.file + "': ";
    if (other_user)
      found.push_back(what + ((status.st_mode & S_IROTH) != 0
                                  ? "it is readable by all users; remove that permission (chmod o-r)"
                                  : "it belongs to their user or group; give it to root (chown root:root)"));
    else if (settings.sandbox == Sandbox::off)
      found.push_back(what + "workers are not confined (--sandbox=off)");
    else if (worker::sandbox::landlock_version() < worker::sandbox::kLandlockFiles) {
      found.push_back(what +
                      "workers run as poold's user and this kernel has no Landlock; start poold as root");
    } else {
      found.push_back(what +
                      "workers run as poold's user and need the file's folder for libraries, settings or "
                      "devices; move the file or start poold as root");
    }
  }
  return found;
}

}  // namespace gpupool::server
