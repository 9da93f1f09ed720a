// Reads the head of an HTTP/1.x request. A pure function of untrusted bytes.
#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace gpupool::server {

constexpr size_t kMostRequestHeadBytes = 8 * 1024;

struct HttpRequest {
  bool head = false;  // HEAD: the answer goes without its body
  std::string path;   // of the target, without the query
  std::string host;   // as in the Host field, perhaps with a port; empty: HTTP/1.0 without one
  int refusal = 0;    // 4xx or 505 with which the request is to be answered; 0: it is a good GET or HEAD
};

// Nothing: what came so far may still become a head. Never nothing from kMostRequestHeadBytes on.
std::optional<HttpRequest> read_request(std::string_view bytes);

// True for localhost and for numeric addresses, with or without a port. A web page of another site whose name was made to resolve to this
// machine (DNS rebinding) shows up with that name.
bool is_local_host(std::string_view host);

}  // namespace gpupool::server
