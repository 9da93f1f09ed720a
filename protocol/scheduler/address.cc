#include "protocol/scheduler/address.h"

#include <charconv>
#include <cmath>
#include <functional>
#include <map>

#include "common/text/units.h"
#include "protocol/control/priority.h"

namespace gpupool::pool {
namespace {

constexpr std::string_view kScheme = "pool://";
constexpr uint32_t kMostGpus = 1024;
constexpr const char* kSize = "a size, like 8GiB";

Error wrong(const std::string& why) {
  return {ErrorCode::invalid, why};
}

template <class T>
bool read_number(const std::string& text, T& out) {
  const auto read = std::from_chars(text.data(), text.data() + text.size(), out);
  return !text.empty() && read.ec == std::errc() && read.ptr == text.data() + text.size();
}

// Parses a decimal number and multiplies it by `each`, to get thousandths: 1000 for units (cpus), 10 for
// percent.
bool read_milli(const std::string& text, double each, double most, uint32_t& out) {
  double value = 0;
  if (!read_number(text, value) || !(value > 0 && value <= most)) return false;
  out = static_cast<uint32_t>(std::lround(value * each));
  return out != 0;
}

Result<std::string> decoded(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned code = 0;
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    if (i + 2 >= text.size() || std::from_chars(&text[i + 1], &text[i + 3], code, 16).ptr != &text[i + 3])
      return wrong("'" + text + "': % needs two hexadecimal digits");
    out += static_cast<char>(code);
    i += 2;
  }
  return out;
}

using Read = std::function<bool(const std::string&, PoolAddress&)>;
struct Key {
  const char* must_be;
  Read read;
  bool repeated = false;
};

Read size(void (pool::Request::*set)(uint64_t)) {
  return [set](const std::string& text, PoolAddress& out) {
    const auto bytes = parse_memory(text);
    if (!bytes || *bytes == 0) return false;
    (out.request.*set)(*bytes);
    return true;
  };
}

Read flag(const std::function<void(PoolAddress&, bool)>& set) {
  return [set](const std::string& text, PoolAddress& out) {
    if (text != "0" && text != "1") return false;
    set(out, text == "1");
    return true;
  };
}

Read word(const std::function<void(pool::Request&, const std::string&)>& set) {
  return [set](const std::string& text, PoolAddress& out) {
    if (text.empty() || text.size() > 64) return false;
    set(out.request, text);
    return true;
  };
}

const std::map<std::string, Key>& keys() {
  static const std::map<std::string, Key> all{
      {"gpus",
       {"a whole number from 1 to 1024; for half a GPU use compute=50",
        [](const std::string& text, PoolAddress& out) {
          uint32_t count = 0;
          if (!read_number(text, count) || count == 0 || count > kMostGpus) return false;
          out.request.set_gpus(count);
          return true;
        }}},
      {"compute",
       {"a percentage above 0 and up to 100, of each GPU",
        [](const std::string& text, PoolAddress& out) {
          uint32_t milli = 0;
          if (!read_milli(text, 10, 100, milli)) return false;
          out.request.set_compute_milli(milli);
          return true;
        }}},
      {"memory", {kSize, size(&pool::Request::set_memory_bytes)}},
      {"model",
       {"the name of a GPU model",
        word([](pool::Request& out, const std::string& text) { out.add_models(text); }), true}},
      {"one-host", {"0 or 1", flag([](PoolAddress& out, bool yes) { out.request.set_one_host(yes); })}},
      {"cpus",
       {"a number above 0",
        [](const std::string& text, PoolAddress& out) {
          uint32_t milli = 0;
          if (!read_milli(text, 1000, 100'000, milli)) return false;
          out.request.set_cpu_milli(milli);
          return true;
        }}},
      {"host-memory", {kSize, size(&pool::Request::set_host_memory_bytes)}},
      {"mode",
       {"elastic or hard",
        [](const std::string& text, PoolAddress& out) {
          out.request.set_mode(text == "hard" ? lease::HARD : lease::ELASTIC);
          return text == "hard" || text == "elastic";
        }}},
      {"priority",
       {pool::kPriorityNames,
        [](const std::string& text, PoolAddress& out) {
          const auto named = pool::parse_priority(text);
          if (named) out.request.set_priority(*named);
          return named.has_value();
        }}},
      {"near",
       {"a label", word([](pool::Request& out, const std::string& text) { out.add_near(text); }), true}},
      {"apart",
       {"a label", word([](pool::Request& out, const std::string& text) { out.add_apart_from(text); }),
        true}},
      {"label",
       {"a label", word([](pool::Request& out, const std::string& text) { out.add_labels(text); }), true}},
      {"tenant",
       {"a tenant's name", word([](pool::Request& out, const std::string& text) { out.set_tenant(text); })}},
      {"insecure", {"0 or 1", flag([](PoolAddress& out, bool yes) { out.insecure = yes; })}},
  };
  return all;
}

Result<Scheduler> parse_scheduler(const std::string& text) {
  if (text.find("://") != std::string::npos)
    return wrong("'" + text + "': invalid scheduler address; use HOST:PORT without " +
                 text.substr(0, text.find("://") + 3));
  Scheduler scheduler;
  const size_t bracket = text.rfind(']');
  const size_t colon = text.find(':', bracket == std::string::npos ? 0 : bracket);
  scheduler.host = text.substr(0, colon);
  if (scheduler.host.starts_with("[") && bracket != std::string::npos &&
      bracket + 1 == scheduler.host.size()) {
    scheduler.host = scheduler.host.substr(1, bracket - 1);
  }
  if (scheduler.host.empty() || scheduler.host.find_first_of("[]/@ ") != std::string::npos)
    return wrong("'" + text + "': invalid scheduler address; use HOST:PORT");
  if (colon != std::string::npos &&
      (!read_number(text.substr(colon + 1), scheduler.port) || scheduler.port == 0)) {
    return wrong("'" + text + "': the port must be a number from 1 to 65535");
  }
  return scheduler;
}

Result<void> read_pair(const std::string& pair, std::map<std::string, bool>& seen, PoolAddress& out) {
  const size_t equals = pair.find('=');
  const std::string name = pair.substr(0, equals);
  const auto key = keys().find(name);
  if (key == keys().end()) {
    std::string all;
    for (const auto& [known, its] : keys()) all += (all.empty() ? "" : ", ") + known;
    return wrong("unknown key '" + name + "'; valid keys: " + all);
  }
  if (seen[name] && !key->second.repeated) return wrong("duplicate key '" + name + "'");
  seen[name] = true;
  const auto value =
      equals == std::string::npos ? Result<std::string>(std::string()) : decoded(pair.substr(equals + 1));
  if (!value) return value.error();
  if (key->second.read(*value, out)) return {};
  if (const auto bytes = parse_memory(*value); key->second.must_be == kSize && !bytes)
    return wrong(name + ": " + bytes.error().message);
  return wrong(name + " must be " + key->second.must_be + ", not '" + *value + "'");
}

template <class F>
Result<void> for_each_part(const std::string& text, char separator, F&& use) {
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(separator, at), text.size());
    if (const Result<void> used = use(text.substr(at, end - at)); !used) return used;
    at = end + 1;
  }
  return {};
}

}  // namespace

std::string Scheduler::text() const {
  return (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" + std::to_string(port);
}

Result<PoolAddress> parse_pool_address(const std::string& text) {
  if (!text.starts_with(kScheme)) return wrong("'" + text + "' must begin with pool://");
  PoolAddress out;
  out.request.set_gpus(1);
  out.request.set_compute_milli(1000);
  out.request.set_priority(lease::NORMAL);
  const size_t question = text.find('?');
  const std::string hosts =
      text.substr(kScheme.size(), question == std::string::npos ? question : question - kScheme.size());
  auto read = for_each_part(hosts, ',', [&](const std::string& part) -> Result<void> {
    auto scheduler = parse_scheduler(part);
    if (!scheduler) return scheduler.error();
    out.schedulers.push_back(std::move(*scheduler));
    return {};
  });
  std::map<std::string, bool> seen;
  if (read && question != std::string::npos) {
    read = for_each_part(text.substr(question + 1), '&', [&](const std::string& part) {
      return part.empty() ? Result<void>{} : read_pair(part, seen, out);
    });
  }
  if (!read) return read.error();
  return out;
}

}  // namespace gpupool::pool
