// Tests that nobody without the schedulers' key makes or alters a ticket or the secret of a lease.
#include "scheduler/service/lease_credentials.h"

#include <cstring>
#include <string>

#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::scheduler;

namespace {

constexpr Time kArrived = 1'000'000;

struct Ticket {
  const LeaseCredentials credentials{*lease::SigningKey::make()};
  pool::Request request;
  std::string ticket;
  Ticket() {
    request.set_gpus(2);
    ticket = credentials.ticket("physics", request, kArrived);
  }
  // The arrival time of the request with this ticket, as that of a tenant.
  std::optional<Time> arrival(const std::string& shown, const std::string& tenant = "physics") const {
    pool::Request with = request;
    with.set_ticket(shown);
    return credentials.arrival(tenant, with);
  }
};

}  // namespace

TEST_CASE("a ticket is good for its tenant's request alone") {
  Ticket of;
  CHECK(of.arrival(of.ticket) == kArrived);
  CHECK_FALSE(of.arrival(of.ticket, "chemistry"));
  CHECK_FALSE(of.arrival(of.ticket, ""));
  of.request.set_gpus(3);
  CHECK_FALSE(of.arrival(of.ticket));
}

TEST_CASE("a forged or altered ticket is not accepted") {
  const Ticket of;
  for (size_t at = 0; at < of.ticket.size(); ++at) {  // the time, and the MAC
    std::string altered = of.ticket;
    altered[at] = static_cast<char>(altered[at] ^ 1);
    INFO("byte " << at);
    CHECK_FALSE(of.arrival(altered));
  }
  const Time earlier = kArrived - 1;
  std::string predated = of.ticket;
  std::memcpy(predated.data(), &earlier, sizeof earlier);
  CHECK_FALSE(of.arrival(predated));
  CHECK_FALSE(of.arrival(of.ticket.substr(0, sizeof earlier)));  // without a MAC
  CHECK_FALSE(of.arrival(of.ticket + "x"));
  CHECK_FALSE(
      of.arrival(LeaseCredentials(*lease::SigningKey::make()).ticket("physics", of.request, kArrived)));
  // The secret of a lease is no MAC of a ticket.
  CHECK_FALSE(of.arrival(of.ticket.substr(0, sizeof earlier) + of.credentials.lease_secret(of.ticket)));
}

TEST_CASE("the secret of a lease is good for that lease alone") {
  const LeaseCredentials credentials(*lease::SigningKey::make()), others(*lease::SigningKey::make());
  const LeaseId lease(16, 'a'), other(16, 'b');
  const std::string secret = credentials.lease_secret(lease);
  CHECK(credentials.is_lease_secret(lease, secret));
  CHECK_FALSE(credentials.is_lease_secret(other, secret));
  CHECK_FALSE(credentials.is_lease_secret(lease, others.lease_secret(lease)));
  CHECK_FALSE(credentials.is_lease_secret(lease, secret.substr(0, 31)));
  CHECK_FALSE(credentials.is_lease_secret(lease, ""));
}
