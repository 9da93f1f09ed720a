#include "client/kubernetes/claim.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "client/kubernetes/quantity.h"

namespace gpupool::kubernetes {
namespace {

constexpr uint64_t kMostGpus = 32;  // devices in one allocation (AllocationResultsMaxSize of Kubernetes)

Error invalid(const std::string& message) {
  return {ErrorCode::invalid, message};
}

struct Share {
  uint32_t compute_milli = 0;
  uint64_t memory_bytes = 0;
  bool operator==(const Share&) const = default;
};

// Reads a capacity, whose name may have the driver's name before it. Returns 0 if there is none.
Result<uint64_t> milli_of(const Json& capacities, const std::string& driver, const std::string& name) {
  std::string text = text_member(capacities, {name.c_str()});
  if (text.empty()) text = text_member(capacities, {(driver + "/" + name).c_str()});
  return text.empty() ? 0 : parse_milli(text);
}

Result<Share> read_share(const Json& capacities, const std::string& driver) {
  const auto percent = milli_of(capacities, driver, "compute");
  if (!percent) return invalid("compute: " + percent.error().message);
  const auto memory = milli_of(capacities, driver, "memory");
  if (!memory) return invalid("memory: " + memory.error().message);
  if (*percent > 100'000)
    return invalid("compute is a percentage of each GPU, up to 100; for more GPUs use count");
  return Share{static_cast<uint32_t>((*percent + 99) / 100), *memory / 1000};
}

// Adds terms, which replace those of the same name that were there before.
void add_terms(const std::string& text, std::vector<std::pair<std::string, std::string>>& all) {
  std::vector<std::pair<std::string, std::string>> fresh;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find('&', at), text.size());
    const std::string term = text.substr(at, end - at);
    if (!term.empty()) fresh.emplace_back(term.substr(0, term.find('=')), term);
    at = end + 1;
  }
  std::erase_if(all, [&](const auto& old) {
    return std::any_of(fresh.begin(), fresh.end(), [&](const auto& one) { return one.first == old.first; });
  });
  all.insert(all.end(), fresh.begin(), fresh.end());
}

// Reads the terms in the configurations for this driver: those of a class come first, and the claim's replace
// them.
Result<std::string> read_terms(const Json& configurations, const std::string& driver) {
  std::vector<std::pair<std::string, std::string>> all;
  for (const bool of_class : {true, false}) {
    for (const Json& one : configurations) {
      if ((text_member(one, {"source"}) == "FromClass") != of_class) continue;
      if (text_member(one, {"opaque", "driver"}) != driver) continue;
      const Json& parameters = member(one, {"opaque", "parameters"});
      const Json& terms = member(parameters, {"terms"});
      if (!terms.is_string() || parameters.size() != 1)
        return invalid("the parameters for " + driver + " must be {\"terms\": \"NAME=VALUE&...\"}");
      add_terms(terms.get<std::string>(), all);
    }
  }
  std::string text;
  for (const auto& [name, term] : all) {
    for (const char* const forbidden : {"gpus", "tenant", "insecure", "model"}) {
      if (name == forbidden) return invalid("'" + name + "' cannot be in a claim's terms");
    }
    text += (text.empty() ? "" : "&") + term;
  }
  return text;
}

const Json& list_of(const Json& object, std::initializer_list<const char*> path) {
  static const Json none = Json::array();
  const Json& list = member(object, path);
  return list.is_array() ? list : none;
}

// Sets the share, which all devices of a claim must have alike.
Result<void> set_share(LeaseTerms& lease, const std::optional<Share>& before, const Share& share) {
  if (before && *before != share) {
    return invalid(
        "all requests of a claim must ask for the same compute and memory, because a claim has one lease; "
        "use "
        "a claim for each");
  }
  lease.compute_milli = share.compute_milli;
  lease.memory_bytes = share.memory_bytes;
  return {};
}

}  // namespace

ClaimName name_of(const Json& claim) {
  return {text_member(claim, {"metadata", "namespace"}), text_member(claim, {"metadata", "name"}),
          text_member(claim, {"metadata", "uid"})};
}

std::string path_of(const ClaimName& claim) {
  return "/apis/resource.k8s.io/v1/namespaces/" + escaped(claim.space) + "/resourceclaims/" +
         escaped(claim.name);
}

Result<Allocation> read_allocation(const Json& claim, const std::string& driver) {
  Allocation out;
  std::optional<Share> share;
  for (const Json& result : list_of(claim, {"status", "allocation", "devices", "results"})) {
    if (text_member(result, {"driver"}) != driver) continue;
    if (member(result, {"adminAccess"}) == Json(true))
      return invalid("adminAccess cannot be had: Kubernetes does not count it, and the pool would");
    const auto its = read_share(member(result, {"consumedCapacity"}), driver);
    if (!its) return its.error();
    if (const auto set = set_share(out.lease, share, *its); !set) return set.error();
    share = *its;
    out.devices.push_back(
        {text_member(result, {"request"}), text_member(result, {"pool"}), text_member(result, {"device"})});
  }
  if (out.devices.empty())
    return Error{ErrorCode::unavailable, "the claim has no allocated device of " + driver};
  out.lease.gpus = static_cast<uint32_t>(out.devices.size());
  auto terms = read_terms(list_of(claim, {"status", "allocation", "devices", "config"}), driver);
  if (!terms) return terms.error();
  out.lease.terms = std::move(*terms);
  return out;
}

Result<LeaseTerms> read_request(const Json& claim, const std::string& driver,
                                const std::string& device_class) {
  LeaseTerms lease;
  std::optional<Share> share;
  for (const Json& request : list_of(claim, {"spec", "devices", "requests"})) {
    const Json& exactly = member(request, {"exactly"});
    if (text_member(exactly, {"deviceClassName"}) != device_class) continue;
    const Json& count = member(exactly, {"count"});
    const uint64_t gpus = count.is_number_unsigned() ? count.get<uint64_t>() : 1;
    lease.gpus = static_cast<uint32_t>(std::min(lease.gpus + gpus, kMostGpus + 1));
    const auto its = read_share(member(exactly, {"capacity", "requests"}), driver);
    if (!its) return its.error();
    if (const auto set = set_share(lease, share, *its); !set) return set.error();
    share = *its;
  }
  auto terms = read_terms(list_of(claim, {"spec", "devices", "config"}), driver);
  if (!terms) return terms.error();
  lease.terms = std::move(*terms);
  return lease;
}

Result<pool::PoolAddress> address_for(const std::string& server, const LeaseTerms& lease) {
  std::string text = server;
  if (!lease.terms.empty()) text += (text.find('?') == std::string::npos ? "?" : "&") + lease.terms;
  auto address = pool::parse_pool_address(text);
  if (!address) return address.error();
  for (const std::string& label : address->request.labels()) {
    if (label.starts_with(kSpaceLabel)) return invalid("the label 'namespace' is set by gpupool");
  }
  if (lease.gpus > kMostGpus)
    return invalid("a claim can have at most " + std::to_string(kMostGpus) + " GPUs");
  pool::Request& request = address->request;
  request.set_gpus(lease.gpus);
  if (lease.compute_milli != 0) request.set_compute_milli(lease.compute_milli);
  if (lease.memory_bytes != 0) request.set_memory_bytes(lease.memory_bytes);
  for (const std::string& model : lease.models) request.add_models(model);
  return address;
}

}  // namespace gpupool::kubernetes
