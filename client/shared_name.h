// The names under which sessions of one tenant share memory and events, in the forms that programs carry between processes: CUDA's
// opaque handles of 64 bytes, which may also go to other machines, or a file with those bytes, whose descriptor goes over Unix
// sockets. A name says which server and session has the thing, and holds a secret; it keeps nothing alive. Any thread.
#pragma once
#include <cstring>

#include "client/call.h"
#include "protocol/wire/sharing.h"

namespace gpupool::client {

enum class SharedKind : uint32_t { memory = 1, event = 2, allocation = 3, pool = 4, pool_pointer = 5 };

template <class Handle>
void write_name(const wire::SharedName& name, Handle* to) {
  static_assert(sizeof name == sizeof *to);
  std::memcpy(to, &name, sizeof name);
}

// The name in bytes that the program says are a handle of this kind, and the session with its server. CUDA_ERROR_INVALID_VALUE: they are
// not. CUDA_ERROR_NOT_SUPPORTED: the program has no session with that server, which is told the user.
CUresult read_name(const void* bytes, SharedKind kind, wire::SharedName* name, Session** session);
// The bytes in a file; -1: the file is none of write_name_file()'s, or (write) there can be none.
int write_name_file(const wire::SharedName& name);
bool read_name_file(int descriptor, wire::SharedName* bytes);

// Another process has a name of device memory of this one, or the other way round.
void note_shared_memory();
bool memory_is_shared();

}  // namespace gpupool::client
