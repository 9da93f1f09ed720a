// One Attend stream to one scheduler. It is made, written to and cancelled on poold's thread; what it tells comes on gRPC's
// threads, which must not touch poold's objects. It keeps itself alive until it has told its end.
#pragma once
#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "protocol/control/pool.grpc.pb.h"

namespace gpupool::server {

class NodeStream final : public grpc::ClientBidiReactor<pool::NodeReport, pool::NodeOrders>, public std::enable_shared_from_this<NodeStream> {
 public:
  struct Events {
    std::function<void(pool::NodeOrders)> orders;
    std::function<void()> written;  // write() may be called again
    std::function<void()> broken;   // release() it
    // Last. `leader`: the address that an UNAVAILABLE scheduler says to go to; empty: it says none. `stream` must go on another
    // thread than gRPC's, which is still at work on it.
    std::function<void(std::shared_ptr<NodeStream> stream, const grpc::Status& status, const std::string& leader)> ended;
  };

  static std::shared_ptr<NodeStream> open(std::shared_ptr<grpc::Channel> channel, const std::string& token, Events events);

  // After the first one, which may be at once, only after `written`, and not after release().
  void write(pool::NodeReport report);
  void cancel() { context_.TryCancel(); }
  // Writes a last report, after the one that is being written, and ends the stream. Once, instead of release().
  void leave(pool::NodeReport last);
  // Nothing will be written any more: the stream can end. Once.
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
  std::mutex mutex_;  // for the next two, which both threads use
  bool writing_ = false;
  std::optional<pool::NodeReport> last_;  // waits for the report that is being written
  std::shared_ptr<NodeStream> self_;  // until OnDone()
};

}  // namespace gpupool::server
