// The names by which sessions of one tenant share memory and events. Programs pass them between processes as
// CUDA's opaque 64-byte handles, which may also go to other machines, or as a file with those bytes, whose
// descriptor goes over Unix sockets. A name identifies server, session and object, and contains a secret; it
// keeps nothing alive. Thread-safe.
#pragma once
#include <cstring>

#include "client/session/call.h"
#include "protocol/wire/sharing.h"

namespace gpupool::client {

enum class SharedKind : uint32_t { memory = 1, event = 2, allocation = 3, pool = 4, pool_pointer = 5 };

template <class Handle>
void write_name(const wire::SharedName& name, Handle* to) {
  static_assert(sizeof name == sizeof *to);
  std::memcpy(to, &name, sizeof name);
}

// Checks that the bytes are a name of this kind and finds the session with its server.
// CUDA_ERROR_INVALID_VALUE: they are not a name. CUDA_ERROR_NOT_SUPPORTED: this process has no session with
// that server (also logged).
CUresult read_name(const void* bytes, SharedKind kind, wire::SharedName* name, Session** session);
// Writes the name to an anonymous sealed file and returns its descriptor; -1: failed. read_name_file()
// returns false if the file is too short.
int write_name_file(const wire::SharedName& name);
bool read_name_file(int descriptor, wire::SharedName* bytes);

// Notes that device memory is shared between this process and another one.
void note_shared_memory();
bool memory_is_shared();

}  // namespace gpupool::client
