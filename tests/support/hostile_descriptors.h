// Descriptors whose last close() blocks, and helpers that send them over Unix sockets as an attacker would.
// The setup functions throw std::runtime_error.
#pragma once
#include <functional>
#include <string_view>
#include <vector>

namespace gpupool::testing {

// A loopback TCP socket with SO_LINGER and unread data: its last close() blocks for kSeconds, or until
// end_lingering().
class LingeringSocket {
 public:
  static constexpr int kSeconds = 60;
  LingeringSocket();
  ~LingeringSocket();
  LingeringSocket(const LingeringSocket&) = delete;
  LingeringSocket& operator=(const LingeringSocket&) = delete;
  int descriptor() const { return lingers_; }
  void close();          // closes this process's copy; waits at most a second if it is the last one
  void end_lingering();  // lets blocked close() calls return, in any thread

 private:
  int lingers_ = -1, peer_ = -1;
};
// Fills the send buffer of a connected socket whose peer does not read, and sets SO_LINGER.
void fill_and_linger(int connected, int seconds);

// Sends bytes with SCM_RIGHTS. Returns 0 or errno.
int send_with_descriptors(int socket, std::string_view bytes, const std::vector<int>& descriptors);

// Runs `start`, and the processes that it starts, as on kernels before Linux 6.16, which do not have
// SO_PASSRIGHTS.
void without_pass_rights(const std::function<void()>& start);

}  // namespace gpupool::testing
