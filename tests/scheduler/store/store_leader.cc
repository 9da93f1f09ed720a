// Usage: store_leader STORE NAME. Becomes the leader, and repeatedly writes one value under 400 keys in one
// write, which exceeds an etcd transaction. Tests kill or pause it. Prints "leads TERM", "written" after the
// first write, and "lost REASON" before it exits because it lost the leadership.
#include <cstdio>
#include <string>
#include <vector>

#include "scheduler/store/open/open_store.h"

int main(int count, char** words) {
  using namespace gpupool::scheduler;
  if (count != 3) return 2;
  const auto say = [](const std::string& line) {
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
  };
  const auto store = open_store(words[1]);
  if (!store) return say(store.error().message), 1;
  const auto term = (*store)->campaign(words[2], std::chrono::seconds(30));
  if (!term) return say(term.error().message), 1;
  say("leads " + std::to_string(*term));
  for (unsigned long i = 0;; ++i) {
    std::vector<Write> writes;
    for (int k = 0; k < 400; ++k)
      writes.push_back({"all/" + std::to_string(k), words[2] + std::to_string(i) + std::string(100, '.')});
    if (const auto written = (*store)->write(writes, *term); !written)
      return say("lost " + written.error().message), 0;
    if (i == 0) say("written");
  }
}
