#include "client/kubernetes/claims.h"

#include <algorithm>
#include <utility>

#include "client/cdi/device.h"
#include "client/cdi/file.h"
#include "client/cdi/specification.h"
#include "client/lease_client/job.h"
#include "common/log/log.h"

namespace gpupool::kubernetes {
namespace {

// An API server that was restored from a backup, or has just started, may not know a claim for a moment.
constexpr int kUnusedTwice = 2;
constexpr const char* kUnknownNode = "?";  // no name of a node

std::string cdi_name(const std::string& uid) {
  return "claim-" + uid;
}

const Json& consumers_of(const Json& claim) {
  static const Json none = Json::array();
  const Json& all = member(claim, {"status", "reservedFor"});
  return all.is_array() ? all : none;
}

// Updates the specification, which has all claims of this node.
Result<void> update_specification(const std::string& file,
                                  const std::function<void(cdi::Specification&)>& change) {
  return cdi::update_file(file, true, [&](const auto& present) -> Result<std::optional<std::string>> {
    auto specification = present ? cdi::Specification::parse(*present, file)
                                 : Result<cdi::Specification>(cdi::Specification());
    if (!specification) return specification.error();
    change(*specification);
    if (specification->devices().empty()) return std::optional<std::string>();
    const auto text = specification->text();
    if (!text) return text.error();
    return std::optional(*text);
  });
}

}  // namespace

Claims::Claims(Settings settings, const ApiServer& api, ClaimStore store)
    : settings_(std::move(settings)),
      api_(api),
      store_(std::move(store)),
      events_(api, settings_.driver.name) {}

void Claims::adopt() {
  std::vector<std::string> problems;
  for (StoredClaim& claim : store_.read_all(problems)) {
    auto lease = open_lease(claim);
    const auto described = lease ? describe(claim) : Result<void>(lease.error());
    if (!described) problems.push_back("claim " + text_of(claim.name) + ": " + described.error().message);
    if (!lease) continue;
    log::info("claim_adopted", {{"claim", text_of(claim.name)}, {"uid", claim.name.uid}});
    const auto held = std::make_shared<Held>();
    held->lease = std::move(*lease);
    held->claim = std::move(claim);
    const std::lock_guard lock(mutex_);
    held_[held->claim.name.uid] = held;
  }
  for (const std::string& problem : problems) log::error("claim_not_adopted", {{"error", problem}});
}

std::shared_ptr<Claims::Held> Claims::find(const std::string& uid) const {
  const std::lock_guard lock(mutex_);
  const auto found = held_.find(uid);
  return found == held_.end() ? nullptr : found->second;
}

Result<void> Claims::begin(const ClaimName& name) {
  if (!is_uid(name.uid)) return Error{ErrorCode::invalid, "'" + name.uid + "' is not a UID"};
  if (const auto held = find(name.uid)) {
    const bool over = held->lease->state().phase == ClaimLease::Phase::refused || is_released(*held);
    if (!over) return {};
    if (const auto released = release(name.uid); !released) return released;  // asked again
  }
  auto claim = read_claim(name);
  if (!claim) {
    if (claim.error().code != ErrorCode::unavailable)
      (void)events_.report(name, EventType::warning, "Refused", claim.error().message);
    return claim.error();
  }
  const std::lock_guard lock(mutex_);
  if (held_.contains(name.uid)) return {};  // another call was faster
  // Stored before the request: a restarted plugin could not find the lease otherwise, and it would stay taken
  // until the scheduler's `hold` ends it.
  if (const auto stored = store_.put(*claim); !stored) return stored;
  auto lease = open_lease(*claim);
  if (!lease) {
    (void)store_.remove(name.uid);
    return lease.error();
  }
  const auto held = std::make_shared<Held>();
  held->lease = std::move(*lease);
  held->claim = std::move(*claim);
  held_[name.uid] = held;
  return {};
}

bool Claims::is_released(const Held& held) const {
  const std::lock_guard lock(mutex_);
  return held.released;
}

Result<Claims::Prepared> Claims::finish(const ClaimName& name, Clock::time_point deadline) {
  const auto held = find(name.uid);
  if (!held) return Error{ErrorCode::unavailable, "claim " + text_of(name) + " was released meanwhile"};
  const ClaimLease::State state = held->lease->await(deadline);
  if (state.phase == ClaimLease::Phase::refused) {
    (void)events_.report(name, EventType::warning, "Refused", state.text);
    if (const auto released = release(name.uid); !released) return released.error();
    return Error{ErrorCode::refused, state.text};
  }
  if (state.phase == ClaimLease::Phase::waiting) {
    return Error{ErrorCode::unavailable,
                 state.text.empty() ? "waiting for an answer of the pool's scheduler" : state.text};
  }
  const std::lock_guard lock(mutex_);
  if (held->releasing || held->released)
    return Error{ErrorCode::unavailable, "claim " + text_of(name) + " is being released"};
  if (const auto described = describe(held->claim); !described) return described.error();
  if (!held->claim.prepared) {
    held->claim.prepared = true;
    if (const auto stored = store_.put(held->claim); !stored) return stored.error();
  }
  return Prepared{held->claim.devices, std::string(cdi::kKind) + "=" + cdi_name(name.uid)};
}

Result<void> Claims::unprepare(const ClaimName& name) {
  if (!is_uid(name.uid)) return Error{ErrorCode::invalid, "'" + name.uid + "' is not a UID"};
  return release(name.uid);
}

// Returns a lease and forgets the claim, in an order that can be repeated after a crash.
Result<void> Claims::release(const std::string& uid) {
  std::shared_ptr<Held> held;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = held_.find(uid); found != held_.end()) held = found->second;
    if (held && std::exchange(held->releasing, true))
      return Error{ErrorCode::unavailable, "the claim is being released"};
  }
  if (held) held->lease->release();
  const std::lock_guard lock(mutex_);
  const auto removed = update_specification(
      settings_.cdi_file, [&](cdi::Specification& all) { (void)all.remove(cdi_name(uid)); });
  const auto forgotten = removed ? store_.remove(uid) : removed;
  if (forgotten) {
    held_.erase(uid);
  } else if (held) {
    held->releasing = false;  // the next call tries again
    held->released = true;
  }
  return forgotten;
}

Result<void> Claims::describe(const StoredClaim& claim) const {
  cdi::DeviceOptions options;
  options.name = cdi_name(claim.name.uid);
  options.lease_folder = store_.lease_folder(claim.name.uid);
  options.tls_ca = settings_.container_tls_ca;
  const auto described = cdi::describe_device(settings_.installation, options);
  if (!described) return described.error();
  return update_specification(settings_.cdi_file, [&](cdi::Specification& all) {
    all.set_common(cdi::common_edits(settings_.installation));
    all.put(described->device);
  });
}

Result<std::unique_ptr<ClaimLease>> Claims::open_lease(const StoredClaim& claim) const {
  auto address = address_for(settings_.driver.server, claim.lease);
  if (!address) return address.error();
  // Another node has another lease, even if a claim is prepared there while this node is not reachable.
  address->request.set_id(lease_client::request_id_of(claim.name.uid + " " + settings_.node));
  address->request.set_program("claim " + text_of(claim.name));
  address->request.set_host(settings_.node);
  address->request.add_labels(kSpaceLabel + claim.name.space);
  // Secrets are replaced while leases are held.
  const auto renewed = [this, space = claim.name.space, own = claim.own_token] {
    const auto token = renewed_token(api_, settings_.driver.tenant, space, own);
    return token ? *token : "";
  };
  return std::make_unique<ClaimLease>(lease_client::LeaseClient::Settings{.address = std::move(*address),
                                                                          .token = claim.token,
                                                                          .tls = settings_.driver.tls,
                                                                          .renewed_token = renewed},
                                      store_.lease_folder(claim.name.uid), claim.prepared);
}

void Claims::keep() {
  std::vector<std::shared_ptr<Held>> all;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [uid, held] : held_) {
      if (!held->releasing) all.push_back(held);
    }
  }
  for (const auto& held : all) report_state(*held);
  if (Clock::now() < next_check_) return;
  next_check_ = Clock::now() + settings_.unused_interval;
  release_unused();
}

void Claims::report_state(Held& held) {
  const ClaimLease::State state = held.lease->state();
  const ClaimName& name = held.claim.name;
  if (state.phase == ClaimLease::Phase::granted && held.waited)
    held.waited = !events_.report(name, EventType::normal, "Granted", "the lease was granted");
  if (state.phase != ClaimLease::Phase::waiting || state.text.empty()) return;
  held.waited = true;
  (void)events_.report(name, EventType::warning, state.lost ? "LeaseLost" : "Waiting", state.text);
}

// Returns leases that the kubelet has forgotten.
void Claims::release_unused() {
  std::vector<std::shared_ptr<Held>> all;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [uid, held] : held_) all.push_back(held);
  }
  for (const auto& held : all) {
    const ClaimName& name = held->claim.name;
    const Use use = use_of(name);
    if (use == Use::unanswered) return;  // nor will it for the others
    held->unused = use == Use::elsewhere || use == Use::gone ? held->unused + 1 : 0;
    if (held->unused < kUnusedTwice) continue;
    log::warning("claim_unused", {{"claim", text_of(name)}, {"uid", name.uid}});
    if (const auto released = release(name.uid); !released)
      log::error("claim_not_released", {{"claim", text_of(name)}, {"error", released.error().message}});
  }
}

Claims::Use Claims::use_of(const ClaimName& name) const {
  const auto reply = api_.get(path_of(name));
  if (!reply) return Use::unanswered;
  if (reply->says_missing("resourceclaims", name.name)) return Use::gone;
  const std::string uid = name_of(reply->body).uid;
  if (!reply->succeeded() || uid.empty()) return Use::unknown;
  if (uid != name.uid || member(reply->body, {"status", "allocation"}).is_null()) return Use::gone;
  for (const Json& one : consumers_of(reply->body)) {
    if (text_member(one, {"resource"}) != "pods") return Use::here;  // for all that is known
    const std::string node = node_of_pod(name.space, one);
    if (node == kUnknownNode) return Use::unknown;
    if (node == settings_.node) return Use::here;
  }
  return Use::elsewhere;
}

// Returns the node of a pod that uses a claim; empty: there is no such pod, or it has no node.
std::string Claims::node_of_pod(const std::string& space, const Json& consumer) const {
  if (text_member(consumer, {"resource"}) != "pods") return kUnknownNode;
  const std::string pod = text_member(consumer, {"name"});
  const auto reply = api_.get("/api/v1/namespaces/" + escaped(space) + "/pods/" + escaped(pod));
  if (!reply || (!reply->succeeded() && !reply->says_missing("pods", pod))) return kUnknownNode;
  if (text_member(reply->body, {"metadata", "uid"}) != text_member(consumer, {"uid"})) return "";
  return text_member(reply->body, {"spec", "nodeName"});
}

// Pods that share a claim share its lease, which one node holds: the node of the first pod.
Result<void> Claims::check_node(const Json& claim) const {
  const Json& consumers = consumers_of(claim);
  if (consumers.size() < 2) return {};
  for (const Json& one : consumers) {
    const std::string node = node_of_pod(name_of(claim).space, one);
    if (node.empty()) continue;
    if (node == kUnknownNode)
      return Error{ErrorCode::unavailable, "cannot find out which nodes use the claim"};
    if (node == settings_.node) return {};
    return Error{ErrorCode::invalid,
                 "pod " + text_member(one, {"name"}) + " uses the claim on node " + node +
                     ": pods that share a claim must run on one node; use a ResourceClaimTemplate to give "
                     "each a claim of its own"};
  }
  return {};
}

Result<StoredClaim> Claims::read_claim(const ClaimName& name) const {
  const auto reply = api_.get(path_of(name));
  if (!reply) return reply.error();
  if (!reply->succeeded())
    return Error{ErrorCode::unavailable, "cannot read claim " + text_of(name) + ": " + reply->reason()};
  if (name_of(reply->body).uid != name.uid)
    return Error{ErrorCode::unavailable, "claim " + text_of(name) + " is another one now"};
  const auto allocation = read_allocation(reply->body, settings_.driver.name);
  if (!allocation) return allocation.error();
  if (const auto checked = check_node(reply->body); !checked) return checked.error();
  StoredClaim claim;
  claim.name = name;
  claim.devices = allocation->devices;
  claim.lease = allocation->lease;
  auto models = models_of(*allocation);
  if (!models) return models.error();
  claim.lease.models = std::move(*models);
  auto token = token_of(api_, settings_.driver.tenant, name.space);
  if (!token) return token.error();
  claim.token = std::move(token->text);
  claim.own_token = token->of_namespace;
  if (const auto address = address_for(settings_.driver.server, claim.lease); !address)
    return address.error();
  return claim;
}

// Returns the models of the allocated devices, to which the lease is restricted.
Result<std::vector<std::string>> Claims::models_of(const Allocation& allocation) const {
  const auto slices = api_.list("/apis/resource.k8s.io/v1/resourceslices?fieldSelector=spec.driver%3D" +
                                escaped(settings_.driver.name));
  if (!slices) return slices.error();
  std::vector<std::string> models;
  for (const AllocatedDevice& wanted : allocation.devices) {
    std::string model;
    for (const Json& slice : *slices) {
      if (text_member(slice, {"spec", "driver"}) != settings_.driver.name ||
          text_member(slice, {"spec", "pool", "name"}) != wanted.pool)
        continue;
      for (const Json& device : member(slice, {"spec", "devices"})) {
        if (text_member(device, {"name"}) == wanted.device)
          model = text_member(device, {"attributes", "model", "string"});
      }
    }
    if (model.empty()) {
      return Error{ErrorCode::unavailable, "device " + wanted.device + " of pool " + wanted.pool +
                                               " is in no ResourceSlice any more"};
    }
    if (std::find(models.begin(), models.end(), model) == models.end()) models.push_back(model);
  }
  return models;
}

}  // namespace gpupool::kubernetes
