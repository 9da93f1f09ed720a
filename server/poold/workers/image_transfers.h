// Module images between the workers and poold's cache (image_cache.h), by descriptors of memory files.
// poold's thread.
//
// The functions for messages return false if the worker that sent the message was ended.
#pragma once
#include <cstdint>
#include <map>

#include "server/handover/handover.h"
#include "server/poold/upgrade/state.pb.h"
#include "server/poold/workers/image_cache.h"
#include "server/poold/workers/workers.h"

namespace gpupool::server {

class ImageTransfers {
 public:
  ImageTransfers(Workers& workers, ImageCache& images) : workers_(workers), images_(images) {}
  ~ImageTransfers();
  ImageTransfers(const ImageTransfers&) = delete;
  ImageTransfers& operator=(const ImageTransfers&) = delete;

  // Sends the worker an image of the cache, or tells it that there is none.
  bool wanted(Worker& worker, const packet::ImageQuestion& wanted);
  bool damaged(Worker& worker, const packet::Image& image);
  // Gives the worker a file to fill with an image that it offers. It has one such file at a time, and delays
  // its client's reply while it fills the file.
  bool offered(Worker& worker, const packet::ImageQuestion& offered);
  bool deposited(Worker& worker, const packet::Image& deposit);
  // True if the worker has a file to fill and deposit.
  bool awaits_deposit(const Worker& worker) const;
  void session_ended(const Worker& worker);
  // For this process's next program (server/poold/upgrade).
  void save(uint64_t session, upgrade::Session& to) const;
  void restore(uint64_t session, const upgrade::Session& from);

 private:
  struct Transfer {
    wire::ImageDigest sent{};  // last image that poold gave the worker
    // File that the worker fills with an image it has offered. poold made it, so its close does not block.
    wire::ImageDigest name{};
    uint64_t bytes = 0;
    int file = -1;
  };

  Workers& workers_;
  ImageCache& images_;
  std::map<uint64_t, Transfer> transfers_;  // by session
};

}  // namespace gpupool::server
