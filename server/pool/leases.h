// The leases that poold knows of: those that clients have shown, and those that the scheduler has ended. Each is a tenant of its
// own, "TENANT/ID8", from its first session on until it has ended or expired and nothing of it is left, so that it is limited,
// audited and shown where all tenants are. poold's one thread.
//
// A client's token is not trusted (protocol/lease/token.h); nor is the scheduler's word, beyond which leases end.
#pragma once
#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/control/hello.pb.h"
#include "protocol/control/pool.pb.h"
#include "protocol/lease/token.h"
#include "server/tenants/tenants.h"

namespace gpupool::server {

class Leases {
 public:
  // What it knows of poold and does to it.
  struct Host {
    std::function<const std::vector<control::Device>&()> devices;
    std::function<size_t(const std::string& tenant)> sessions;  // those that wait for a worker included
    std::function<void(const std::string& tenant, const std::string& reason)> end_sessions;
    std::function<std::chrono::milliseconds()> now;             // since 1970
  };
  struct Admitted {
    std::string tenant;
    std::string lease;  // hexadecimal
  };

  // `boot`: kBootBytes, of this process.
  Leases(asio::io_context& context, Tenants& tenants, std::string node, std::string boot, std::vector<lease::PublicKey> keys, Host host);
  Leases(const Leases&) = delete;
  Leases& operator=(const Leases&) = delete;

  void use_keys(std::vector<lease::PublicKey> keys) { keys_ = std::move(keys); }
  const std::string& boot() const { return boot_; }
  bool serves() const { return !keys_.empty(); }

  // Whose session it is. ErrorCode::refused or malformed: the reason is for the client.
  Result<Admitted> admit(std::string_view token);
  // No new session from now on; those that run are ended after `grace`. The next report says when nothing is left. `id` must have
  // lease::kIdBytes.
  void end(const std::string& id, const std::string& reason, std::chrono::milliseconds grace);
  // Some session has ended.
  void settle_soon();
  // Those with a session, those that have ended since the last report, and the keys that leases are checked with.
  void report(pool::NodeReport& out);
  size_t count() const { return entries_.size(); }
  // `changed` is called when there is something to report at once. For this object's whole life.
  void on_end(std::function<void()> changed) { changed_ = std::move(changed); }
  // No more timers.
  void stop();

 private:
  using Time = std::chrono::milliseconds;
  struct Entry {
    Entry(asio::io_context& context) : end(context) {}
    std::string tenant;
    uint64_t serial = 0;
    Time expires{};
    quota::Quota quota;
    std::vector<uint32_t> gpus;
    bool ending = false;
    std::string reason;
    asio::steady_timer end;  // of `grace`
  };
  Result<std::vector<uint32_t>> find_gpus(const lease::Lease& lease) const;
  std::string new_name(const lease::Lease& lease) const;
  void settle();

  asio::io_context& context_;
  Tenants& tenants_;
  const std::string node_;
  const std::string boot_;
  std::vector<lease::PublicKey> keys_;
  const Host host_;
  std::map<std::string, Entry> entries_;  // by id
  std::map<std::string, Time> ended_;     // by id: until when a token of it may still be valid
  std::map<std::string, uint64_t> to_report_;  // ended, nothing is left: the serial, by id
  std::function<void()> changed_;
  bool settling_ = false;
  bool stopped_ = false;
};

}  // namespace gpupool::server
