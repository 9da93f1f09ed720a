#include "client/kubernetes/controller.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "client/kubernetes/quantity.h"
#include "client/kubernetes/slices.h"
#include "client/lease_client/lease_client.h"
#include "common/log/log.h"
#include "protocol/control/pool_admin.grpc.pb.h"
#include "protocol/scheduler/channel.h"

namespace gpupool::kubernetes {
namespace {

constexpr const char* kSlices = "/apis/resource.k8s.io/v1/resourceslices";
constexpr const char* kClaims = "/apis/resource.k8s.io/v1/resourceclaims";
constexpr std::chrono::seconds kTimeout{8};
constexpr std::chrono::seconds kCheckPatience{5};
// Slices are published by the same thread.
constexpr std::chrono::seconds kLongestLook{10};
constexpr int kMostLeaseBytes = 64 << 20;
constexpr int kStepsBetweenComparisons = 30;

int64_t generation_of(const Json& slices) {
  int64_t highest = 0;
  for (const Json& slice : slices) {
    const Json& generation = member(slice, {"spec", "pool", "generation"});
    if (generation.is_number_integer()) highest = std::max(highest, generation.get<int64_t>());
  }
  return highest;
}

// Returns true for equal texts, and for equal quantities: the API server writes 1000 as 1k.
bool are_equal(const Json& one, const Json& other) {
  if (one == other || !one.is_string() || !other.is_string()) return one == other;
  const auto first = parse_milli(one.get<std::string>()), second = parse_milli(other.get<std::string>());
  return first && second && *first == *second;
}

// Returns true if an answer of the API server, which adds fields, has all that was wanted.
bool has_all(const Json& present, const Json& wanted) {
  if (wanted.is_object()) {
    for (const auto& [name, value] : wanted.items()) {
      if (!has_all(member(present, {name.c_str()}), value)) return false;
    }
    return present.is_object();
  }
  if (!wanted.is_array()) return are_equal(present, wanted);
  return present.is_array() && present.size() == wanted.size() &&
         std::equal(present.begin(), present.end(), wanted.begin(), has_all);
}

}  // namespace

void Controller::step() {
  const auto nodes = ask_nodes();
  note("pool", nodes ? Result<void>() : Result<void>(nodes.error()));
  if (nodes) note("slices", publish(*nodes));
  if (std::chrono::steady_clock::now() < next_check_) return;
  next_check_ = std::chrono::steady_clock::now() + settings_.claims_interval;
  note("claims", check_claims());
}

// Logs a failure when it begins or changes, and its end.
void Controller::note(const char* what, const Result<void>& result) {
  std::string& last = problems_[what];
  const std::string now = result ? "" : result.error().message;
  if (now == std::exchange(last, now)) return;
  if (result)
    log::info("recovered", {{"of", what}});
  else
    log::warning("failed", {{"of", what}, {"error", now}});
}

Result<pool::ListNodesReply> Controller::ask_nodes() {
  auto address = pool::parse_pool_address(settings_.driver.server);
  if (!address) return address.error();
  std::string token;
  if (!settings_.operator_token_file.empty()) {
    auto read = read_token(settings_.operator_token_file);
    if (!read) return read.error();
    token = std::move(*read);
  }
  std::string why;
  // One attempt for each scheduler, and one for a leader that one of them names.
  for (size_t tries = 0; tries <= address->schedulers.size(); ++tries) {
    const pool::Scheduler scheduler = address->schedulers[scheduler_ % address->schedulers.size()];
    const auto stub = pool::PoolAdmin::NewStub(
        pool::open_channel(*address, scheduler, settings_.driver.tls, kMostLeaseBytes));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kTimeout);
    if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
    pool::ListNodesReply reply;
    const grpc::Status status = pool::printable_status(stub->ListNodes(&context, {}, &reply));
    if (status.ok()) return reply;
    why = pool::failure_text(scheduler, status);
    if (status.error_code() != grpc::StatusCode::UNAVAILABLE) break;
    scheduler_ = pool::leader_of(context, address->schedulers).value_or(scheduler_ + 1);
  }
  return Error{ErrorCode::unavailable, why};
}

Result<void> Controller::publish(const pool::ListNodesReply& nodes) {
  if (!shared_) {
    const auto kept = keeps_shared();
    if (!kept) return kept.error();
    use_shared(*kept);
  }
  Json devices = devices_of(nodes, *shared_);
  if (devices == published_ && ++steps_ < kStepsBetweenComparisons) return {};
  const auto present = list_slices();
  if (!present) return present.error();
  if (!present->empty() && has_all(devices_in(*present), devices)) {
    published_ = std::move(devices);
    steps_ = 0;
    return {};
  }
  const auto kept = replace(*present, devices);
  if (!kept) return kept.error();
  if (*kept) {
    log::info("published", {{"devices", devices.size()}, {"shared", *shared_ ? 1 : 0}});
    published_ = std::move(devices);
    steps_ = 0;
    return {};
  }
  use_shared(false);  // the feature was turned off meanwhile
  return publish(nodes);
}

void Controller::use_shared(bool shared) {
  shared_ = shared;
  if (shared) return;
  log::warning(
      "no_consumable_capacity",
      {{"consequence", "the cluster allocates whole GPUs only"},
       {"remedy", "enable the feature gate DRAConsumableCapacity, or use Kubernetes 1.36 or newer"}});
}

// Returns the slices of the pool, in the order of their numbers.
Result<Json> Controller::list_slices() const {
  const auto all =
      api_.list(std::string(kSlices) + "?fieldSelector=spec.driver%3D" + escaped(settings_.driver.name));
  if (!all) return all.error();
  std::map<std::pair<size_t, std::string>, Json> ordered;
  for (const Json& slice : *all) {
    if (text_member(slice, {"spec", "driver"}) != settings_.driver.name ||
        text_member(slice, {"spec", "pool", "name"}) != settings_.pool)
      continue;
    const std::string name = text_member(slice, {"metadata", "name"});
    ordered[{name.size(), name}] = slice;
  }
  Json slices = Json::array();
  for (auto& [name, slice] : ordered) slices.push_back(std::move(slice));
  return slices;
}

// Writes the slices and removes others of the pool. Returns false if the API server has left out that devices
// are shared.
Result<bool> Controller::replace(const Json& present, const Json& devices) {
  const Json slices = slices_of(devices, settings_.driver.name, settings_.pool, generation_of(present) + 1);
  std::set<std::string> written;
  Json answers = Json::array();
  for (Json slice : slices) {
    const std::string name = text_member(slice, {"metadata", "name"});
    const auto old = std::find_if(present.begin(), present.end(), [&](const Json& one) {
      return text_member(one, {"metadata", "name"}) == name;
    });
    const bool exists = old != present.end();
    if (exists) slice["metadata"]["resourceVersion"] = text_member(*old, {"metadata", "resourceVersion"});
    const auto reply = exists ? api_.send("PUT", std::string(kSlices) + "/" + escaped(name), slice)
                              : api_.send("POST", kSlices, slice);
    if (!reply) return reply.error();
    if (!reply->succeeded())
      return Error{ErrorCode::refused, "the API server refuses slice " + name + ": " + reply->reason()};
    written.insert(name);
    answers.push_back(reply->body);
  }
  for (const Json& one : present) {
    const std::string name = text_member(one, {"metadata", "name"});
    if (written.contains(name)) continue;
    const auto reply = api_.remove(std::string(kSlices) + "/" + escaped(name));
    if (!reply) return reply.error();
    if (!reply->succeeded() && !reply->says_missing("resourceslices", name))
      return Error{ErrorCode::refused,
                   "the API server does not remove slice " + name + ": " + reply->reason()};
  }
  return !*shared_ || are_shared(devices_in(answers));
}

// Asks the API server whether it keeps that a device is shared, which it leaves out without saying so if the
// feature is off. Nothing is stored.
Result<bool> Controller::keeps_shared() const {
  const auto reply = api_.send("POST", std::string(kSlices) + "?dryRun=All",
                               probe_slice(settings_.driver.name, settings_.pool));
  if (!reply) return reply.error();
  if (!reply->succeeded())
    return Error{ErrorCode::refused, "the API server refuses to try a slice: " + reply->reason()};
  return are_shared(devices_in(Json::array({reply->body})));
}

Result<void> Controller::check_claims() {
  const auto claims = api_.list(kClaims);
  if (!claims) return claims.error();
  std::set<std::string> present;
  // Sorts claims by UID. The API server chooses UIDs at random, so that a namespace with many claims does not
  // delay the claims of others.
  std::map<std::string, const Json*> waiting;
  for (const Json& claim : *claims) {
    const std::string uid = name_of(claim).uid;
    present.insert(uid);
    const bool waits = member(claim, {"status", "allocation"}).is_null() &&
                       member(claim, {"metadata", "deletionTimestamp"}).is_null();
    if (waits && !checked_.contains(uid)) waiting[uid] = &claim;
  }
  std::erase_if(checked_, [&](const std::string& uid) { return !present.contains(uid); });
  tokens_.clear();
  const auto end = std::chrono::steady_clock::now() + kLongestLook;
  for (const auto& [uid, claim] : waiting) {
    if (std::chrono::steady_clock::now() > end) return {};  // the next look goes on
    const auto known = check(*claim);
    if (!known) return known.error();  // it would be the same for the others, after the same time
    if (*known) checked_.insert(uid);
  }
  return {};
}

const Result<TenantToken>& Controller::token_for(const std::string& space) {
  const auto found = tokens_.find(space);
  if (found != tokens_.end()) return found->second;
  return tokens_.emplace(space, token_of(api_, settings_.driver.tenant, space)).first->second;
}

// Asks the pool's scheduler whether the claim can ever be granted. Returns false if that is not known yet.
// ErrorCode::unavailable: the scheduler or the API server does not answer.
Result<bool> Controller::check(const Json& claim) {
  const ClaimName name = name_of(claim);
  const auto refuse = [&](const std::string& why) {
    (void)events_.report(name, EventType::warning, "Impossible", why);
    return true;
  };
  const auto lease = read_request(claim, settings_.driver.name, settings_.device_class);
  if (!lease) return refuse(lease.error().message);
  if (lease->gpus == 0) return true;  // of another driver
  auto address = address_for(settings_.driver.server, *lease);
  if (!address) return refuse(address.error().message);
  const auto& token = token_for(name.space);
  if (!token && token.error().code == ErrorCode::unavailable) return token.error();
  if (!token) return token.error().code == ErrorCode::invalid && refuse(token.error().message);
  address->request.set_check_only(true);
  address->request.set_program("claim " + text_of(name));
  lease_client::LeaseClient client(
      {.address = std::move(*address),
       .token = token->text,
       .tls = settings_.driver.tls,
       .patience = kCheckPatience},
      [](const pool::Granted&) { return Result<void>(); }, [](const std::string&) {});
  const Result<void> checked = client.run();
  if (checked) return true;
  if (checked.error().code == ErrorCode::unavailable) return checked.error();
  return refuse(checked.error().message);
}

}  // namespace gpupool::kubernetes
