#include "scheduler/store/etcd/etcd_store.h"

#include <charconv>
#include <map>
#include <mutex>
#include <thread>

#include "scheduler/store/etcd/client.h"
#include "scheduler/store/etcd/keeper.h"
#include "scheduler/store/etcd/page_check.h"
#include "scheduler/store/etcd/redo_log.h"

namespace gpupool::scheduler {
namespace {

using namespace std::chrono_literals;
using namespace etcdserverpb;
using etcd::Client;
using etcd::Clock;
using etcd::Keeper;
using etcd::Operations;
using etcd::RedoLog;

constexpr auto kLeaderLives = 3s;  // TTL of the leader's lease
constexpr auto kTimeout = 3s;      // deadline of a call
constexpr auto kLookAgain = 50ms;
constexpr int kMaxReadings = 5;  // attempts of all() while etcd compacts the revisions that it reads

uint64_t term_of(const std::string& term_record) {
  uint64_t term = 0;
  std::from_chars(term_record.data(), term_record.data() + term_record.size(), term);
  return term;
}

void add_compare(TxnRequest& out, const std::string& key, int64_t create_revision) {
  Compare& compare = *out.add_compare();
  compare.set_target(Compare::CREATE);
  compare.set_key(key);
  compare.set_create_revision(create_revision);
}

void add_compare(TxnRequest& out, const std::string& key, const std::string& value) {
  Compare& compare = *out.add_compare();
  compare.set_target(Compare::VALUE);
  compare.set_key(key);
  compare.set_value(value);
}

void add_range(google::protobuf::RepeatedPtrField<RequestOp>& out, const std::string& key) {
  out.Add()->mutable_request_range()->set_key(key);
}

class EtcdStore : public Store {
 public:
  EtcdStore(std::string text, const std::string& prefix, std::unique_ptr<Client> client)
      : text_(std::move(text)),
        leader_key_(prefix + "/leader"),
        term_key_(prefix + "/term"),
        entries_(prefix + "/entry/"),
        redo_log_(prefix + "/batch"),
        client_(std::move(client)) {}
  ~EtcdStore() override { resign(); }

  Result<uint64_t> campaign(const std::string& address, std::chrono::milliseconds timeout) override {
    resign();
    const auto until = Clock::now() + timeout;
    for (;;) {
      const auto seen = read_leader();
      if (!seen) return seen.error();
      if (!seen->leader.empty()) {
        if (Clock::now() >= until)
          return Error{ErrorCode::refused,
                       "the scheduler " + seen->leader + " is the leader in " + describe()};
        if (!client_->await_change(leader_key_, seen->revision, until))
          std::this_thread::sleep_for(
              std::min<Clock::duration>(kLookAgain, std::max<Clock::duration>(0s, until - Clock::now())));
        continue;
      }
      if (auto good = become_leader(address, *seen); !good) {
        resign();
        if (good.error().code != ErrorCode::refused || Clock::now() >= until) return good.error();
        continue;  // another scheduler became the leader
      }
      if (auto good = apply_redo_log(); !good) {
        resign();
        return good.error();
      }
      return term_;
    }
  }

  void resign() override {
    if (!keeper_) return;
    const int64_t lease = keeper_->lease();
    set_leader("");
    take_keeper().reset();
    (void)client_->revoke(lease, Clock::now() + 1s);  // if this fails, the lease expires
  }

  bool leads() const override {
    const std::lock_guard lock(mutex_);
    return keeper_ && keeper_->is_good();
  }

  std::optional<std::string> leader() const override {
    const std::lock_guard lock(mutex_);
    return leader_.empty() ? std::nullopt : std::optional(leader_);
  }

  Result<std::vector<Entry>> all(const std::string& prefix) override {
    for (int left = kMaxReadings;; --left) {
      std::map<std::string, std::string> entries;
      int64_t revision = 0;
      grpc::Status status =
          read(entries_ + prefix, revision, [&](const KeyValue& one) { entries[one.key()] = one.value(); });
      Operations unfinished;
      if (status.ok()) status = read_redo_log(revision, unfinished);
      if (!status.ok()) {
        // OUT_OF_RANGE: the revision has been compacted. Start again with the latest one.
        if (status.error_code() == grpc::StatusCode::OUT_OF_RANGE && left > 1) continue;
        return failure(status);
      }
      for (const RequestOp& one : unfinished) {
        if (one.has_request_put() && one.request_put().key().starts_with(entries_ + prefix))
          entries[one.request_put().key()] = one.request_put().value();
        if (one.has_request_delete_range()) entries.erase(one.request_delete_range().key());
      }
      std::vector<Entry> out;
      out.reserve(entries.size());
      for (auto& [key, value] : entries) out.emplace_back(key.substr(entries_.size()), std::move(value));
      return out;
    }
  }

  Result<void> write(const std::vector<Write>& writes, uint64_t term) override {
    if (!leads() || term != term_) return Error{ErrorCode::refused, "not the leader"};
    std::map<std::string, const std::optional<std::string>*> last;  // etcd rejects duplicate keys
    for (const Write& write : writes) last[write.key] = &write.value;
    Operations operations;
    for (const auto& [key, value] : last) {
      if (*value) {
        PutRequest& put = *operations.Add()->mutable_request_put();
        put.set_key(entries_ + key);
        put.set_value(**value);
      } else {
        operations.Add()->mutable_request_delete_range()->set_key(entries_ + key);
      }
    }
    if (!etcd::fits_whole(operations)) return write_with_redo_log(operations);
    return commit(std::move(operations));
  }

  std::string describe() const override { return text_; }

 private:
  struct Seen {
    std::string leader;       // address; empty: none
    std::string term_record;  // "TERM WRITES"; empty: there was never a leader
    int64_t revision = 0;
  };

  Error failure(const grpc::Status& status) const {
    return {ErrorCode::unavailable, "the store " + describe() + ": " + status.error_message()};
  }

  // Takes the keeper out under the lock; the caller destroys it without the lock, because that joins its
  // thread.
  std::unique_ptr<Keeper> take_keeper() {
    const std::lock_guard lock(mutex_);
    return std::move(keeper_);
  }
  void set_leader(const std::string& address) {
    const std::lock_guard lock(mutex_);
    leader_ = address;
  }

  Result<Seen> read_leader() {
    TxnRequest request;
    add_range(*request.mutable_success(), leader_key_);
    add_range(*request.mutable_success(), term_key_);
    TxnResponse reply;
    const grpc::Status status = client_->transact(request, reply, Clock::now() + kTimeout);
    Seen seen;
    if (status.ok() && reply.responses_size() == 2) {
      const auto value = [&](int i) {
        const auto& found = reply.responses(i).response_range().kvs();
        return found.empty() ? "" : found[0].value();
      };
      seen = {value(0), value(1), reply.header().revision()};
    }
    set_leader(seen.leader);
    if (!status.ok()) return failure(status);
    return seen;
  }

  // Becomes the leader if there is none and the term is as seen. ErrorCode::refused: another scheduler became
  // the leader.
  Result<void> become_leader(const std::string& address, const Seen& seen) {
    LeaseGrantRequest wanted;
    wanted.set_ttl(kLeaderLives.count());
    LeaseGrantResponse lease;
    const auto since = Clock::now();
    if (const grpc::Status status = client_->grant(wanted, lease, since + kTimeout); !status.ok())
      return failure(status);
    auto keeper = std::make_unique<Keeper>(*client_, lease.id(), std::chrono::seconds(lease.ttl()), since);
    {
      const std::lock_guard lock(mutex_);
      keeper_ = std::move(keeper);
    }
    const uint64_t term = term_of(seen.term_record) + 1;
    written_ = 0;
    TxnRequest request;
    add_compare(request, leader_key_, 0);
    if (seen.term_record.empty())
      add_compare(request, term_key_, 0);
    else
      add_compare(request, term_key_, seen.term_record);
    PutRequest& leader = *request.add_success()->mutable_request_put();
    leader.set_key(leader_key_);
    leader.set_value(address);
    leader.set_lease(lease.id());
    PutRequest& term_record = *request.add_success()->mutable_request_put();
    term_record.set_key(term_key_);
    term_record.set_value(term_record_text(term, 0));
    add_range(*request.mutable_failure(), leader_key_);
    TxnResponse reply;
    const grpc::Status status = client_->transact(request, reply, keeper_->good_until());
    if (!status.ok()) return failure(status);
    leader_revision_ = reply.header().revision();
    if (!reply.succeeded()) {
      const auto& found = reply.responses_size() == 1 ? reply.responses(0).response_range().kvs()
                                                      : google::protobuf::RepeatedPtrField<KeyValue>();
      if (found.empty() || found[0].lease() != lease.id())
        return Error{ErrorCode::refused, "another scheduler is the leader"};
      leader_revision_ = found[0].create_revision();  // an earlier attempt succeeded, but its answer was lost
    }
    term_ = term;
    set_leader(address);
    return {};
  }

  static std::string term_record_text(uint64_t term, uint64_t written) {
    return std::to_string(term) + " " + std::to_string(written);
  }

  // Executes the operations in one transaction, exactly once even if it is sent repeatedly: each transaction
  // increments the number of writes in the term key and requires the previous number.
  Result<void> commit(Operations operations) {
    TxnRequest request;
    add_compare(request, leader_key_, leader_revision_);
    add_compare(request, term_key_, term_record_text(term_, written_));
    *request.mutable_success() = std::move(operations);
    PutRequest& term_record = *request.add_success()->mutable_request_put();
    term_record.set_key(term_key_);
    term_record.set_value(term_record_text(term_, written_ + 1));
    add_range(*request.mutable_failure(), leader_key_);
    add_range(*request.mutable_failure(), term_key_);
    TxnResponse reply;
    const grpc::Status status = client_->transact(request, reply, keeper_->good_until());
    if (!status.ok()) return failure(status);
    if (!reply.succeeded() && !has_done(reply)) {
      keeper_->give_up();
      return Error{ErrorCode::refused, "another scheduler is the leader"};
    }
    ++written_;
    return {};
  }

  bool has_done(const TxnResponse& reply) const {
    if (reply.responses_size() != 2) return false;
    const auto& leader = reply.responses(0).response_range().kvs();
    const auto& term_record = reply.responses(1).response_range().kvs();
    return !leader.empty() && leader[0].create_revision() == leader_revision_ && !term_record.empty() &&
           term_record[0].value() == term_record_text(term_, written_ + 1);
  }

  // Writes operations that exceed one transaction by way of the redo log (redo_log.h).
  Result<void> write_with_redo_log(const Operations& operations) {
    auto parts = redo_log_.record(operations);
    if (!parts) return parts.error();
    for (Operations& part : *parts) {
      if (auto good = commit(std::move(part)); !good) return good;
    }
    return apply(operations);
  }

  Result<void> apply(const Operations& operations) {
    for (Operations& part : etcd::cut(operations)) {
      if (auto good = commit(std::move(part)); !good) return good;
    }
    return commit(redo_log_.removal());
  }

  // Applies a committed redo log that an earlier leader left.
  Result<void> apply_redo_log() {
    Operations operations;
    if (const grpc::Status status = read_redo_log(0, operations); !status.ok()) return failure(status);
    if (operations.empty()) return {};
    return apply(operations);
  }

  grpc::Status read_redo_log(int64_t revision, Operations& out) {
    RedoLog::Reader reader(redo_log_);
    grpc::Status status = read(redo_log_.prefix(), revision, [&](const KeyValue& one) { reader.add(one); });
    if (status.ok()) out = reader.whole();
    return status;
  }

  // Reads all keys with the prefix in order, in pages of one consistent revision. If `revision` is 0, uses
  // the latest and stores it there. Fails if etcd returns other keys, keys out of order, or too much.
  template <class Use>
  grpc::Status read(const std::string& prefix, int64_t& revision, Use use) {
    RangeRequest request;
    request.set_key(prefix);
    request.set_range_end(etcd::prefix_end(prefix));
    request.set_limit(etcd::kMaxPage);
    etcd::PageCheck pages(prefix);
    for (bool more = true; more;) {
      request.set_revision(revision);
      RangeResponse reply;
      if (const grpc::Status status = client_->range(request, reply, Clock::now() + kTimeout); !status.ok())
        return status;
      if (const grpc::Status status = pages.check(reply); !status.ok()) return status;
      for (const KeyValue& one : reply.kvs()) use(one);
      if (revision == 0) revision = reply.header().revision();
      more = reply.more() && !reply.kvs().empty();
      if (more) request.set_key(reply.kvs(reply.kvs_size() - 1).key() + '\0');
    }
    return grpc::Status::OK;
  }
  const std::string text_;
  const std::string leader_key_, term_key_, entries_;
  const RedoLog redo_log_;
  const std::unique_ptr<Client> client_;
  // While leading: the term, the create revision of the leader's key, and the number of transactions written.
  uint64_t term_ = 0;
  int64_t leader_revision_ = 0;
  uint64_t written_ = 0;
  mutable std::mutex mutex_;
  std::unique_ptr<Keeper> keeper_;  // only the storing thread changes it, under the mutex; null: not leading
  std::string leader_;              // empty: unknown
};

}  // namespace

bool is_etcd_store(const std::string& text) {
  return etcd::is_address(text);
}

Result<void> check_etcd_store(const std::string& text, bool insecure) {
  const auto address = etcd::parse_address(text);
  if (!address) return address.error();
  const std::string member = etcd::plaintext_member(*address);
  if (member.empty() || insecure) return {};
  return Error{ErrorCode::invalid, "refusing to use the store " + text + ": " + member +
                                       " is on another host, and anyone who can read or modify plaintext "
                                       "traffic to etcd controls the pool; enable TLS in etcd and "
                                       "use etcds:// (with --store-ca, --store-certificate, --store-key), or "
                                       "use --insecure in a trusted network"};
}

Result<std::unique_ptr<Store>> open_etcd_store(const std::string& text, const transport::TlsOptions& tls) {
  const auto address = etcd::parse_address(text);
  if (!address) return address.error();
  auto client = Client::open(*address, tls);
  if (!client) return client.error();
  return std::unique_ptr<Store>(std::make_unique<EtcdStore>(text, address->prefix, std::move(*client)));
}

}  // namespace gpupool::scheduler
