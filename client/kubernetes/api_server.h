// Calls of the Kubernetes API server: JSON over HTTP, authenticated by a service account's token, which is
// read again for each call because Kubernetes replaces it. Used by all parts of gpupool-kubernetes; any
// thread. A call fails after 10 s.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "common/result.h"

namespace gpupool::kubernetes {

using Json = nlohmann::json;

class ApiServer {
 public:
  struct Settings {
    std::string url;         // https://HOST:PORT
    std::string token_file;  // empty: no token is sent
    std::string ca_file;     // empty: the system's authorities
  };
  struct Reply {
    int status = 0;  // of HTTP
    Json body;
    bool succeeded() const { return status >= 200 && status < 300; }
    // Returns true if the server says that there is no object of this name. Any other 404 is about the path,
    // and says nothing about the object: a server that is starting, or older, may not know the API.
    bool says_missing(const std::string& resource, const std::string& name) const;
    // Describes a refusal: the server's message.
    std::string reason() const;
  };

  explicit ApiServer(Settings settings);

  // ErrorCode::unavailable: the server does not answer, or not with JSON.
  Result<Reply> get(const std::string& path) const;
  // The body of PATCH is a JSON merge patch.
  Result<Reply> send(const char* method, const std::string& path, const Json& body) const;
  Result<Reply> remove(const std::string& path) const;
  // Returns the items of a list, all pages of it. ErrorCode::refused: the server's reason.
  Result<Json> list(const std::string& path) const;

 private:
  Result<Reply> call(const char* method, const std::string& path, const std::string& body) const;

  Settings settings_;
};

// Escapes a text for a URL.
std::string escaped(const std::string& text);
// Returns the member of nested objects, such as {"status", "allocation"}; null if there is none.
const Json& member(const Json& object, std::initializer_list<const char*> path);
// Returns a member that is a text; empty if there is none.
std::string text_member(const Json& object, std::initializer_list<const char*> path);

}  // namespace gpupool::kubernetes
