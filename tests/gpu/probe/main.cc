#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>

#include "probe.h"

namespace probe {
namespace {

constexpr double kLimit = 18;  // seconds; first_hour.py allows some more

struct Registered {
  std::string name;
  std::function<void()> body;
};
std::vector<Registered>& probes() {
  static std::vector<Registered> all;
  return all;
}

std::mutex mutex;
Object seen;
std::string current_step = "start";

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out + "\"";
}

// Prints the probe's line and exits immediately, since threads may be inside the driver.
[[noreturn]] void finish(const std::string& name, double seconds, const char* how, const std::string& why) {
  const std::lock_guard lock(mutex);
  Object line;
  line.add("probe", name).add("seconds", seconds).add("seen", seen);
  if (*how) line.add(how, why);
  std::printf("%s\n", line.text().c_str());
  std::fflush(stdout);
  std::_Exit(std::strcmp(how, "error") == 0);
}

int run(const Registered& probe, double limit) {
  const auto begin = Clock::now();
  const auto seconds = [begin] { return microseconds(begin) * 1e-6; };
  std::thread([&probe, limit, seconds] {
    std::this_thread::sleep_for(std::chrono::duration<double>(limit));
    std::unique_lock lock(mutex);
    const std::string at = current_step;
    lock.unlock();
    finish(probe.name, seconds(), "error",
           "not done after " + std::to_string(static_cast<int>(limit)) + " s, in: " + at);
  }).detach();
  try {
    probe.body();
  } catch (const Skip& reason) {
    finish(probe.name, seconds(), "skipped", reason.what());
  } catch (const std::exception& failure) {
    finish(probe.name, seconds(), "error", failure.what());
  }
  finish(probe.name, seconds(), "", "");
}

}  // namespace

Object& Object::member(const std::string& name, const std::string& json) {
  members_ += (members_.empty() ? "" : ", ") + quoted(name) + ": " + json;
  return *this;
}
Object& Object::add(const std::string& name, double value) {
  char text[40];
  std::snprintf(text, sizeof text, std::abs(value) < 1e15 && value == std::floor(value) ? "%.0f" : "%.6g",
                value);
  return member(name, std::isfinite(value) ? text : "null");
}
Object& Object::add(const std::string& name, bool value) {
  return member(name, value ? "true" : "false");
}
Object& Object::add(const std::string& name, const std::string& value) {
  return member(name, quoted(value));
}
Object& Object::add(const std::string& name, const Object& value) {
  return member(name, value.text());
}

void see(const std::string& name, double value) {
  const std::lock_guard lock(mutex);
  seen.add(name, value);
}
void see(const std::string& name, bool value) {
  const std::lock_guard lock(mutex);
  seen.add(name, value);
}
void see(const std::string& name, const std::string& value) {
  const std::lock_guard lock(mutex);
  seen.add(name, value);
}
void see(const std::string& name, const Object& value) {
  const std::lock_guard lock(mutex);
  seen.add(name, value);
}

void step(const std::string& what) {
  const std::lock_guard lock(mutex);
  current_step = what;
}

Probe::Probe(std::string name, std::function<void()> body) {
  probes().push_back({std::move(name), std::move(body)});
}

}  // namespace probe

int main(int count, char** words) {
  using namespace probe;
  if (count == 2 && std::strcmp(words[1], "LIST") == 0) {
    for (const auto& each : probes()) std::puts(each.name.c_str());
    return 0;
  }
  const bool limited = count == 4 && std::strcmp(words[2], "--limit") == 0;
  for (const auto& each : probes()) {
    if ((count == 2 || limited) && each.name == words[1])
      return run(each, limited ? std::atof(words[3]) : kLimit);
  }
  std::fprintf(stderr, "usage: %s LIST | NAME [--limit SECONDS]\n", words[0]);
  return 2;
}
