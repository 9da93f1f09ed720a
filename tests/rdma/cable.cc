#include "tests/rdma/cable.h"

#include <fstream>
#include <sstream>
#include <stdexcept>
#include <vector>

#include "tests/support/processes.h"

namespace gpupool::testing {
namespace {

std::string run(const std::string& command) {
  const Finished done = run_to_end({"/bin/sh", "-c", "PATH=$PATH:/usr/sbin:/sbin; " + command});
  if (done.status != 0) throw std::runtime_error(command + ": " + done.output);
  return done.output;
}

bool ports_are(const std::string& state) {
  for (const std::string device : {"rxe0", "rxe1"}) {
    std::string text;
    std::getline(std::ifstream("/sys/class/infiniband/" + device + "/ports/1/state") >> std::ws, text);
    if (text.find(state) == std::string::npos) return false;
  }
  return true;
}

void await_ports(const std::string& state) {
  if (!eventually([&] { return ports_are(state); })) throw std::runtime_error("the ports are not " + state);
}

}  // namespace

BadCable::BadCable(const std::string& netem) {
  for (const std::string end : {"veth0", "veth1"})
    run("tc qdisc add dev " + end + " root netem limit 10000 " + netem);
}

// The other end's address may not have been found meanwhile. Connections would go on to fail with "no route
// to host" until the kernel looks again.
BadCable::~BadCable() {
  for (const std::string end : {"veth0", "veth1"})
    run("tc qdisc del dev " + end + " root && ip neigh flush dev " + end);
}

PulledCable::PulledCable() {
  run("ip link set veth1 down");
  await_ports("DOWN");
}

PulledCable::~PulledCable() {
  plug_in();
}

void PulledCable::plug_in() {
  if (!out_) return;
  out_ = false;
  // The route was removed with the link.
  run("ip link set veth1 up && ip route replace 10.77.0.1 dev veth1 src 10.77.0.2 table 102");
  await_ports("ACTIVE");
}

// Output of `rdma resource show`: a line such as "0: rxe0: qp 1 cq 2 pd 1 mr 3 ..." for each device.
std::map<std::string, int> kernel_objects() {
  std::map<std::string, int> found;
  std::istringstream lines(run("rdma resource show"));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string index, device, kind;
    words >> index >> device;
    for (int count = 0; words >> kind >> count;) found[kind] += count;
  }
  return found;
}

}  // namespace gpupool::testing
