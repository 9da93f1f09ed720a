// Parses the head of an HTTP/1.x request. Pure functions of untrusted bytes.
#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gpupool {

constexpr size_t kMostRequestHeadBytes = 8 * 1024;

struct HttpRequest {
  bool head = false;          // HEAD: the response has no body
  std::string path;           // of the target, without query
  std::string host;           // value of the Host field, possibly with a port; empty: HTTP/1.0 without one
  std::string authorization;  // value of the Authorization field; empty: none
  int refusal = 0;            // status with which to refuse the request, 4xx or 505; 0: a valid GET or HEAD
};

// Returns nothing if the head is incomplete so far, but never for kMostRequestHeadBytes or more.
std::optional<HttpRequest> read_request(std::string_view bytes);

// True for localhost and for numeric addresses, with or without a port. In a DNS rebinding attack, in which
// another site's name is made to resolve to this host, the web page's requests have that name.
bool is_local_host(std::string_view host);
// True for the names of is_local_host() and for `names`, which have no port, regardless of case.
bool is_allowed_host(std::string_view host, const std::vector<std::string>& names);

// Returns the token of "Bearer TOKEN", or an empty string.
std::string bearer_token(std::string_view authorization);

}  // namespace gpupool
