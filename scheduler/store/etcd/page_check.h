// Checks the pages in which etcd returns a range of keys, so that an etcd that has been compromised can
// neither keep a reader busy with the same keys nor fill its memory. Used by etcd_store.cc, on the storing
// thread; failures are gRPC statuses.
#pragma once
#include <grpcpp/support/status.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "etcd.pb.h"

namespace gpupool::scheduler::etcd {

// Limit of a range: keys, values, and kEntryBytes for what each entry needs besides.
constexpr uint64_t kMostRangeBytes = uint64_t{512} << 20;
constexpr uint64_t kEntryBytes = 128;

class PageCheck {
 public:
  explicit PageCheck(std::string prefix) : prefix_(std::move(prefix)) {}

  // Checks the next page before its entries are used.
  grpc::Status check(const etcdserverpb::RangeResponse& page) {
    for (const etcdserverpb::KeyValue& one : page.kvs()) {
      if (!one.key().starts_with(prefix_)) return failure("etcd returned a key that was not requested");
      if (!last_.empty() && one.key() <= last_) return failure("etcd returned keys out of order");
      last_ = one.key();
      bytes_ += one.key().size() + one.value().size() + kEntryBytes;
      if (bytes_ > kMostRangeBytes)
        return failure("etcd returned more than " + std::to_string(kMostRangeBytes >> 20) + " MiB for " +
                       prefix_);
    }
    return grpc::Status::OK;
  }

 private:
  static grpc::Status failure(const std::string& reason) { return {grpc::StatusCode::DATA_LOSS, reason}; }

  const std::string prefix_;
  std::string last_;
  uint64_t bytes_ = 0;
};

}  // namespace gpupool::scheduler::etcd
