// Writes that are more than etcd takes in one transaction (128 operations, 1.5 MiB). They are recorded beside the entries, in parts; the last
// part is written together with the mark that the record is whole. From then on the write counts: whoever leads applies it, piece
// by piece, and removes the record. A record without the mark counts for nothing, and the next one overwrites it.
//
//   PREFIX/batch         the mark: the number of parts
//   PREFIX/batch/0000    a part: a TxnRequest of the operations
#pragma once
#include <map>
#include <string>
#include <vector>

#include "etcd.pb.h"
#include "protocol/wire/result.h"

namespace gpupool::scheduler::etcd {

using Operations = google::protobuf::RepeatedPtrField<etcdserverpb::RequestOp>;

constexpr int kMostOperations = 127;       // with the one that each transaction of the store's has beside them
constexpr size_t kMostBytes = 1024 * 1024;

bool fits_whole(const Operations& operations);
std::vector<Operations> cut(const Operations& operations);  // into pieces that fit

// The first key behind all that begin with `prefix`, as etcd takes it.
std::string behind(std::string prefix);

class Batch {
 public:
  explicit Batch(std::string key) : key_(std::move(key)) {}
  const std::string& prefix() const { return key_; }

  // The transactions that record it. ErrorCode::limit: an entry is too large for etcd.
  Result<std::vector<Operations>> record(const Operations& operations) const;
  Operations removal() const;

  class Reader {
   public:
    explicit Reader(const Batch& batch) : batch_(batch) {}
    void add(const etcdserverpb::KeyValue& one);
    Operations whole() const;  // empty: there is none, or not all of it

   private:
    const Batch& batch_;
    std::string mark_;
    std::map<std::string, std::string> parts_;
  };

 private:
  std::string part_key(size_t number) const;
  const std::string key_;
};

}  // namespace gpupool::scheduler::etcd
