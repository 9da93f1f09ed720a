// Checks whether users other than a file's owner and root can read or write it. poold, pool-scheduler and the
// clients call it before they use private keys, tokens and configurations. No state, any thread. Only the
// file itself is checked, not its folder.
//
// A file owned by root may be readable by its group if that is root's group or one of this process's groups:
// for example a systemd credential, a secret mounted by Kubernetes (fsGroup), or root:gpupool 0640. POSIX
// ACLs count through the group bits of the mode. Character devices such as /dev/null pass.
#pragma once
#include <sys/stat.h>

#include <string>

#include "common/result.h"

namespace gpupool::files {

struct OthersAccess {
  bool readable = false;  // by users other than its owner and root, as is writable
  bool writable = false;
};
OthersAccess access_of_others(const struct stat& about);

// Checks a private key or token file. ErrorCode::invalid if other users can read or write it; the message
// names the chmod that fixes it. A missing file passes: opening it reports the error.
Result<void> check_secret(const std::string& path);
// Checks an open file in the same way; `path` is for the message.
Result<void> check_secret(int file, const std::string& path);
// Checks a configuration or public key, which others may read. ErrorCode::invalid if other users can write
// the file.
Result<void> check_not_writable(const std::string& path);

}  // namespace gpupool::files
