#include "server/poold/node/node_stream.h"

#include <utility>

namespace gpupool::server {

NodeStream::NodeStream(std::shared_ptr<grpc::Channel> channel, const std::string& token, Events events)
    : events_(std::move(events)), stub_(pool::Nodes::NewStub(channel)) {
  if (!token.empty()) context_.AddMetadata("authorization", "Bearer " + token);
}

std::shared_ptr<NodeStream> NodeStream::open(std::shared_ptr<grpc::Channel> channel, const std::string& token,
                                             Events events) {
  std::shared_ptr<NodeStream> stream(new NodeStream(std::move(channel), token, std::move(events)));
  stream->self_ = stream;
  stream->stub_->async()->Attend(&stream->context_, stream.get());
  stream->AddHold();  // writes come from outside of gRPC's calls
  stream->StartRead(&stream->orders_);
  stream->StartCall();
  return stream;
}

void NodeStream::write(pool::NodeReport report) {
  report_ = std::move(report);
  {
    const std::lock_guard lock(mutex_);
    writing_ = true;
  }
  StartWrite(&report_);
}

void NodeStream::read_next() {
  {
    const std::lock_guard lock(mutex_);
    reading_ = true;
  }
  StartRead(&orders_);
}

// Reads until the end, since unread orders would delay it.
void NodeStream::leave(pool::NodeReport last) {
  bool reads = false, writes = false;
  {
    const std::lock_guard lock(mutex_);
    discards_ = true;
    reads = std::exchange(reading_, true);
    writes = writing_;
    if (writes) last_ = std::move(last);
  }
  if (!reads) StartRead(&orders_);
  if (!writes) write_last(std::move(last));
}

void NodeStream::write_last(pool::NodeReport report) {
  report_ = std::move(report);
  StartWriteLast(&report_, grpc::WriteOptions());
  release();
}

void NodeStream::OnReadDone(bool ok) {
  if (!ok) return events_.broken();
  pool::NodeOrders orders = std::exchange(orders_, {});  // before leave() may read the next ones
  bool discards = false;
  {
    const std::lock_guard lock(mutex_);
    discards = discards_;
    reading_ = discards;
  }
  if (discards) return StartRead(&orders_);
  events_.orders(std::move(orders));
}

void NodeStream::OnWriteDone(bool ok) {
  std::optional<pool::NodeReport> last;
  {
    const std::lock_guard lock(mutex_);
    writing_ = false;
    last = std::exchange(last_, std::nullopt);
  }
  if (last && ok) return write_last(std::move(*last));
  if (last) return release();
  if (ok) events_.written();
}

void NodeStream::OnDone(const grpc::Status& status) {
  const auto& trailers = context_.GetServerTrailingMetadata();
  const auto leader = trailers.find("leader");
  const auto ended = events_.ended;  // a copy: the call may destroy this object
  ended(std::exchange(self_, nullptr), status,
        leader == trailers.end() ? "" : std::string(leader->second.data(), leader->second.size()));
}

}  // namespace gpupool::server
