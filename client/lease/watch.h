// Waits for pool-lease to change the lease file (client/lease/file.h). A server may tell a program that its
// lease moves before pool-lease hears of the move and writes it.
//
// Used by the client library (client/process/process.h). Any thread; blocks up to the limit. Watches the
// file's folder with inotify, because each version is a new file, and reads the file again now and then, in
// case inotify reports nothing. Where inotify is not available (the kernel limits its instances for each
// user, and sandboxes may forbid it), reads the file at short intervals. A child that the program forks
// meanwhile keeps the descriptor until it calls exec or ends.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "client/lease/file.h"
#include "common/result.h"

namespace gpupool::client {

using LeaseCondition = std::function<bool(const std::vector<LeasedServer>&)>;

// As named_servers(), but blocks until `holds` is true of the servers. When the limit passes first, returns
// the servers of that time. A lease file that cannot be read is an error at once, and a list of addresses is
// returned at once.
Result<std::vector<LeasedServer>> await_named_servers(const std::string& text, const LeaseCondition& holds,
                                                      std::chrono::milliseconds limit);

// The calls with which a folder is watched, which tests replace.
struct Inotify {
  int (*start)(int flags);                                            // inotify_init1()
  int (*add_watch)(int descriptor, const char* path, uint32_t mask);  // inotify_add_watch()
  // Longest time between two readings of the file. Inotify reports nothing if another kernel changes the
  // folder: NFS, folders that a host shares with a virtual machine.
  std::chrono::milliseconds longest_wait{200};
};
Result<std::vector<LeasedServer>> await_named_servers(const std::string& text, const LeaseCondition& holds,
                                                      std::chrono::milliseconds limit,
                                                      const Inotify& inotify);

}  // namespace gpupool::client
