// Tells whether users other than a file's owner and root can read or write it. poold, pool-scheduler and the clients ask before they use private keys,
// tokens and configurations. No state, any thread. It looks at the file alone: its folder is the operator's matter.
//
// The group may read a file of root's if it is root's group, or one that this process belongs to: a systemd credential, a secret mounted by Kubernetes
// (fsGroup), or root:gpupool 0640. POSIX ACLs show as the group's rights. Device files such as /dev/null pass.
#pragma once
#include <sys/stat.h>

#include <string>

#include "protocol/wire/result.h"

namespace gpupool::files {

struct Exposure {
  bool readable = false;  // by others
  bool writable = false;
};
Exposure exposure_of(const struct stat& about);

// For private keys and tokens. ErrorCode::invalid: others can read or write the file, with the chmod that ends it. A file that is not there passes:
// whoever opens it reports that.
Result<void> check_secret(const std::string& path);
// The same of a file that is open; `path` is for the message.
Result<void> check_secret(int file, const std::string& path);
// For configurations and public keys, which others may read: ErrorCode::invalid if others can write the file.
Result<void> check_unaltered(const std::string& path);

}  // namespace gpupool::files
