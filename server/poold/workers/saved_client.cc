#include "server/poold/workers/saved_client.h"

#include "server/poold/upgrade/values.h"

namespace gpupool::server {

void save(const Client& from, upgrade::Client& to) {
  to.set_transport(from.transport);
  to.set_bulk_link(from.bulk_link);
  to.set_tenant(from.tenant);
  to.set_lease(from.lease);
  to.set_credential(static_cast<uint32_t>(from.credential.kind));
  to.set_token(from.credential.token.data(), from.credential.token.size());
  for (const std::string& name : from.credential.names) to.add_names(name);
  to.set_user(from.credential.user);
  to.set_admission_peer(from.admission_peer);
  to.set_address(from.address);
  to.set_host(from.host);
  to.set_program(from.program);
  to.set_pid(from.pid);
  to.set_pid_space(from.pid_space);
  to.set_process(from.process ? from.process->descriptor() : -1);
}

Client restored(const upgrade::Client& from) {
  Client to;
  to.transport = from.transport();
  to.bulk_link = from.bulk_link();
  to.tenant = from.tenant();
  to.lease = from.lease();
  to.credential.kind = static_cast<Credential::Kind>(from.credential());
  upgrade::copy_bytes(from.token(), to.credential.token);
  to.credential.names.assign(from.names().begin(), from.names().end());
  to.credential.user = from.user();
  to.admission_peer = from.admission_peer();
  to.address = from.address();
  to.host = from.host();
  to.program = from.program();
  to.pid = from.pid();
  to.pid_space = from.pid_space();
  if (from.process() >= 0) to.process = std::make_shared<PeerProcess>(from.process());
  return to;
}

}  // namespace gpupool::server
