// What a thread has done before it sent something comes before what another does after it has received the peer's answer,
// whichever connections the two used. ThreadSanitizer cannot see order that goes through another process, so it is told.
#pragma once

namespace gpupool::transport {

#if defined(__SANITIZE_THREAD__)
extern "C" void __tsan_acquire(void* address);
extern "C" void __tsan_release(void* address);
inline char all_peers;
inline void has_sent() { __tsan_release(&all_peers); }
inline void has_received() { __tsan_acquire(&all_peers); }
#else
inline void has_sent() {}
inline void has_received() {}
#endif

}  // namespace gpupool::transport
