// An Attend stream to one scheduler; Agent uses it. Made, written to and cancelled on poold's thread. Events
// are called on gRPC's threads, which must not touch poold's objects. It owns itself until its `ended` event.
#pragma once
#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "protocol/control/pool.grpc.pb.h"

namespace gpupool::server {

class NodeStream final : public grpc::ClientBidiReactor<pool::NodeReport, pool::NodeOrders>,
                         public std::enable_shared_from_this<NodeStream> {
 public:
  struct Events {
    std::function<void(pool::NodeOrders)> orders;  // the next ones are read after read_next()
    std::function<void()> written;                 // write() may be called again
    std::function<void()> broken;                  // call release()
    // Called last. `leader`: the address that an UNAVAILABLE scheduler redirects to; empty: none. `stream`
    // must be released on a thread other than gRPC's, which is still using it.
    std::function<void(std::shared_ptr<NodeStream> stream, const grpc::Status& status,
                       const std::string& leader)>
        ended;
  };

  static std::shared_ptr<NodeStream> open(std::shared_ptr<grpc::Channel> channel, const std::string& token,
                                          Events events);

  // The first write may follow open() at once, later ones only after `written`, and none after release().
  void write(pool::NodeReport report);
  // Call once after each `orders`, unless release() or leave() was called: a scheduler that sends orders
  // faster than poold's thread handles them then fills its own window, not poold's memory.
  void read_next();
  void cancel() { context_.TryCancel(); }
  // Writes a last report, after the pending one, and ends the stream. Call once, instead of release().
  void leave(pool::NodeReport last);
  // Lets the stream end: nothing more will be written. Call once.
  void release() { RemoveHold(); }

 private:
  NodeStream(std::shared_ptr<grpc::Channel> channel, const std::string& token, Events events);
  void write_last(pool::NodeReport report);
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  const Events events_;
  grpc::ClientContext context_;
  const std::unique_ptr<pool::Nodes::Stub> stub_;
  pool::NodeOrders orders_;
  pool::NodeReport report_;
  std::mutex mutex_;  // guards the members below but self_, which both threads use
  bool writing_ = false;
  bool reading_ = true;                   // false: `orders` were given out
  bool discards_ = false;                 // further orders are dropped: their handler is gone
  std::optional<pool::NodeReport> last_;  // waits for the pending write
  std::shared_ptr<NodeStream> self_;      // keeps this object alive until OnDone()
};

}  // namespace gpupool::server
