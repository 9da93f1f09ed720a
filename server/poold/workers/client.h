// A client of poold after its hello: what the acceptor knows of it, and what its worker gets. poold's thread.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "protocol/peers/proof.h"
#include "protocol/transport/tls/stream.h"
#include "protocol/wire/peers.h"
#include "server/sockets/peer_process.h"
#include "server/tenants/credential.h"
#include "server/tenants/tenants.h"

namespace gpupool::server {

// A copy to a session here that another server may send.
struct PeerCopy {
  uint64_t session = 0;
  uint64_t copy = 0;  // sequence number of the copy's command
  wire::CopyKey key{};
  wire::PeerMac channel_key{};  // at a tls port: of the TLS stream with the other server's worker
};

// A client whose Hello is complete.
struct Client {
  int descriptor = -1;
  std::string transport;
  std::string hello;
  std::string session_id;
  std::string bulk_token;  // not empty: a bulk connection of session_id
  uint32_t bulk_link = 0;  // number of the bulk connection, if the client can resume it
  // Set for a connection with which the client resumes one of session_id that has broken.
  struct Resume {
    std::string proof;
    uint32_t link = 0;  // which of the session's connections
    uint64_t attempt = 0;
    uint64_t received = 0;  // bytes that the client has received
    std::string failure;    // printable; why the client of a suspended session could not go on before

    bool proves(std::string_view resume_key) const {
      return peers::proves_resume(proof, resume_key, link, attempt, received);
    }
  };
  std::optional<Resume> resume;
  // Number of the suspended session that the client's new session continues.
  std::optional<uint64_t> suspended;
  // Set for another server's connection, which has proved that it holds the copy's key.
  std::optional<PeerCopy> peer;
  bool monitor = false;                         // queries GPU state only; needs no session
  bool checkpoint = false;                      // checkpoints other processes; needs no session
  std::shared_ptr<transport::tls::Stream> tls;  // poold's part of a tls connection; null for other transports
  std::string tenant = kDefaultTenant;
  std::string lease;  // hexadecimal; empty: none
  // Authenticated the client; none for bulk and peer connections, which belong to a session.
  Credential credential;
  std::string admission_peer;  // peer that its refusals are charged to (common/admission/peer.h)
  // For logs; all but `address` as the client reported it:
  std::string address;
  std::string host;
  std::string program;
  int64_t pid = 0;
  std::string pid_space;  // PID namespace of `pid`
  // The process of a client on this host that has connected to a Unix socket; null: unknown.
  std::shared_ptr<const PeerProcess> process;
};

}  // namespace gpupool::server
