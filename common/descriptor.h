// An open file that is closed at the end of its scope. Not thread-safe.
#pragma once
#include <unistd.h>

#include <utility>

namespace gpupool {

class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}  // negative: none
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  int number() const { return number_; }

 private:
  int number_;
};

}  // namespace gpupool
