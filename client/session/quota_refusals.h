// Refusals of quotas that servers have reported (wire/refusal.h), until the program gets the error that they
// caused: then they are printed. A call that frees memory and tries again forgets the first refusal.
//
// Servers are not trusted: each name is printed once, kMostNames in all, and without control characters. One
// object for the process, never destroyed. Thread-safe.
#pragma once
#include <atomic>
#include <cstddef>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <string>

#include "protocol/wire/refusal.h"

namespace gpupool::client {

class QuotaRefusals {
 public:
  static constexpr size_t kMostNames = 16;

  // Keeps the refusal of a message from the server. Returns false if the message is malformed.
  bool note(std::span<const std::byte> message, const std::string& server);
  // Forgets the refusals that have not been printed.
  void forget();
  // Called before a call returns CUDA_ERROR_OUT_OF_MEMORY to the program: prints each quota's last refusal.
  void print();

 private:
  struct Refusal {
    wire::QuotaRefusal body;
    std::string server;
  };
  std::atomic<bool> any_{false};            // that are not printed
  std::mutex mutex_;                        // guards the members below
  std::map<std::string, Refusal> pending_;  // by the quota's name
  std::set<std::string> printed_;
};

QuotaRefusals& quota_refusals();

// Returns the message for the program's user.
std::string refusal_text(const wire::QuotaRefusal& refusal, const std::string& name,
                         const std::string& server);

}  // namespace gpupool::client
