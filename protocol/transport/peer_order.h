// Tells ThreadSanitizer about order that goes through the peer's process, which it cannot see: everything a
// thread did before it sent bytes happens before whatever another thread does after it received the peer's
// answer, on any connection. Without ThreadSanitizer these functions do nothing.
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
