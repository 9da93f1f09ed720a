// Descriptors that whoever closes them last has to wait for, and how an attacker sends them.
#pragma once
#include <functional>
#include <string_view>
#include <vector>

namespace gpupool::testing {

// A TCP socket over loopback with SO_LINGER and bytes that its peer does not read: its last close() takes this long, or as long as this object.
class LingeringSocket {
 public:
  static constexpr int kSeconds = 60;
  LingeringSocket();
  ~LingeringSocket();
  LingeringSocket(const LingeringSocket&) = delete;
  LingeringSocket& operator=(const LingeringSocket&) = delete;
  int descriptor() const { return lingers_; }
  void close();  // the own copy: others are left to close the last one
  void end_lingering();  // closes that wait return, also on another thread

 private:
  int lingers_ = -1, peer_ = -1;
};
// The same for a socket that is connected to a peer that does not read.
void fill_and_linger(int connected, int seconds);

// 0, or errno.
int send_with_descriptors(int socket, std::string_view bytes, const std::vector<int>& descriptors);

// Runs `start`, and all processes that it starts, as on a kernel that does not know SO_PASSRIGHTS (before Linux 6.16).
void without_pass_rights(const std::function<void()>& start);

}  // namespace gpupool::testing
