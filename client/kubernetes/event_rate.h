// Decides which reports about claims are written as events, so that a claim that waits or is refused for
// hours does not fill the API server. Used by EventRecorder. Pure, not thread-safe: the caller gives the
// time.
//
// A claim has one event of each reason. A text that differs from the last one only in numbers, such as a
// place in the queue, is the same text.
#pragma once
#include <chrono>
#include <map>
#include <string>

namespace gpupool::kubernetes {

class EventRate {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kBetweenChanges{30};
  static constexpr std::chrono::minutes kBetweenRepeats{10};  // events live for an hour by default
  static constexpr size_t kMostClaims = 1000;                 // the one that was silent longest is forgotten

  enum class Answer {
    write,
    known,  // the event says this already
    later,  // it does not, but was written just now: ask again
  };
  Answer ask(const std::string& uid, const std::string& reason, const std::string& text,
             Clock::time_point now);
  // Returns how often the event was written, as far as is remembered.
  int count(const std::string& uid, const std::string& reason) const;
  // Has the next text count as another one, because the last one was not written.
  void forget_text(const std::string& uid, const std::string& reason);

 private:
  struct Written {
    std::string text;  // without numbers
    Clock::time_point at{};
    int count = 0;
  };
  struct Claim {
    std::string latest;  // reason
    Clock::time_point used{};
    std::map<std::string, Written> events;  // by reason
  };
  void make_room();

  std::map<std::string, Claim> claims_;  // by uid
};

}  // namespace gpupool::kubernetes
