// Redo log for writes that exceed etcd's limits for one transaction (128 operations, 1.5 MiB). The operations
// are first written to separate keys in parts; the last part is written together with a commit mark. From
// then on the write is committed: the leader, or its successor, applies it in pieces and removes the log. A
// log without the mark is ignored and later overwritten.
//
//   PREFIX/batch         the commit mark: the number of parts
//   PREFIX/batch/0000    a part: a serialized TxnRequest with its operations
//
// Used by etcd_store.cc, on the storing thread. Pure: it only builds and parses operations.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "common/result.h"
#include "etcd.pb.h"

namespace gpupool::scheduler::etcd {

using Operations = google::protobuf::RepeatedPtrField<etcdserverpb::RequestOp>;

constexpr int kMaxOperations = 127;  // 128 less the update of the term key that each transaction adds
constexpr size_t kMaxBytes = 1024 * 1024;

bool fits_whole(const Operations& operations);
std::vector<Operations> cut(const Operations& operations);  // pieces that each fit into a transaction

// Returns the end of the key range with this prefix, as etcd's range_end.
std::string prefix_end(std::string prefix);

class RedoLog {
 public:
  // `part_bytes`: limit of one transaction.
  explicit RedoLog(std::string key, size_t part_bytes = kMaxBytes)
      : key_(std::move(key)), part_bytes_(part_bytes) {}
  const std::string& prefix() const { return key_; }

  // Returns the operations of each transaction that writes the log. ErrorCode::limit: an entry is too large
  // for etcd.
  Result<std::vector<Operations>> record(const Operations& operations) const;
  Operations removal() const;

  class Reader {
   public:
    explicit Reader(const RedoLog& log) : log_(log) {}
    void add(const etcdserverpb::KeyValue& one);
    Operations whole() const;  // empty if there is no committed log

   private:
    const RedoLog& log_;
    std::string mark_;
    std::map<std::string, std::string> parts_;
  };

 private:
  std::string part_key(size_t number) const;
  const std::string key_;
  const size_t part_bytes_;
};

}  // namespace gpupool::scheduler::etcd
