#include "server/confinement/secrets.h"

#include <sys/stat.h>
#include <unistd.h>

#include "server/confinement/landlock.h"

namespace gpupool::server {

std::vector<std::string> readable_secrets(const std::vector<Secret>& secrets,
                                          const ConfinementSettings& settings,
                                          const std::vector<std::string>& readable) {
  const bool other_user = ::geteuid() == 0 && !settings.users.empty() && settings.sandbox != Sandbox::off;
  std::vector<std::string> found;
  for (const Secret& secret : secrets) {
    struct stat status {};
    if (secret.file.empty() || ::stat(secret.file.c_str(), &status) != 0) continue;
    if (other_user && (status.st_mode & S_IROTH) == 0) continue;
    if (settings.sandbox != Sandbox::off && !worker::sandbox::is_readable(secret.file, readable)) continue;
    const std::string what = secret.name + ": workers could read '" + secret.file + "': ";
    if (other_user)
      found.push_back(what + "it is readable by all users; remove that permission (chmod o-r)");
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
